//! Random numbers that depend on a seed, a path and the number of a copy.

/// splitmix64 (Steele et al., 2014), begun where BLAKE3 says.
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64, path: &[u8], copy: u32) -> Self {
        let mut hasher = blake3::Hasher::new();
        hasher.update(&seed.to_le_bytes());
        hasher.update(&copy.to_le_bytes());
        hasher.update(path);
        let mut start = [0; 8];
        start.copy_from_slice(&hasher.finalize().as_bytes()[..8]);
        Self(u64::from_le_bytes(start))
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    /// From 0 to below 1.
    pub(crate) fn unit(&mut self) -> f32 {
        // The 24 bits that an f32 holds exactly.
        (self.next() >> 40) as f32 / (1_u32 << 24) as f32
    }

    /// From `-most` to below `most`.
    pub(crate) fn around_zero(&mut self, most: f32) -> f32 {
        (2.0 * self.unit() - 1.0) * most
    }

    /// From 0 to `most`, both included.
    pub(crate) fn up_to(&mut self, most: u32) -> u32 {
        let scaled = (u128::from(self.next()) * (u128::from(most) + 1)) >> 64;
        u32::try_from(scaled).unwrap_or(most)
    }

    /// Mean 0, deviation 1: the sum of 12 numbers (Irwin and Hall), which needs no logarithm and so is the same on
    /// any machine.
    pub(crate) fn normal(&mut self) -> f32 {
        let mut sum = 0;
        for _ in 0..3 {
            let bits = self.next();
            sum += (0..4).map(|part| (bits >> (16 * part)) & 0xFFFF).sum::<u64>();
        }
        sum as f32 / 65_536.0 - 6.0
    }
}
