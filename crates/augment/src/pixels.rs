//! An image in memory, and the changes to it.

/// 8 bits a channel, rows from the top, no padding.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pixels {
    /// Columns.
    pub width: u32,
    /// Rows.
    pub height: u32,
    /// 1 for grey, 3 for red, green, blue, 4 with alpha.
    pub channels: u8,
    /// `width * height * channels` bytes.
    pub data: Vec<u8>,
}

impl Pixels {
    fn step(&self) -> usize {
        usize::from(self.channels)
    }

    fn row(&self) -> usize {
        self.width as usize * self.step()
    }

    /// Channels that are colour and not alpha.
    fn colours(&self) -> usize {
        self.step().min(3)
    }

    /// Left becomes right.
    pub(crate) fn mirrored(mut self) -> Self {
        let (row, step) = (self.row(), self.step());
        for line in self.data.chunks_exact_mut(row) {
            let (mut left, mut right) = (0, line.len());
            while left + step < right {
                right -= step;
                for channel in 0..step {
                    line.swap(left + channel, right + channel);
                }
                left += step;
            }
        }
        self
    }

    /// Top becomes bottom.
    pub(crate) fn upended(mut self) -> Self {
        let row = self.row();
        let rows: Vec<u8> = self.data.chunks_exact(row).rev().flatten().copied().collect();
        self.data = rows;
        self
    }

    /// The part of `width` by `height` whose upper left corner is at `left`, `top`.
    pub(crate) fn cut(&self, left: u32, top: u32, width: u32, height: u32) -> Self {
        let (from, bytes) = (left as usize * self.step(), width as usize * self.step());
        let rows = self.data.chunks_exact(self.row()).skip(top as usize).take(height as usize);
        let data = rows.flat_map(|row| &row[from..from + bytes]).copied().collect();
        Self { width, height, channels: self.channels, data }
    }

    /// Turned about its middle, of the same size; what comes from outside is the nearest edge.
    pub(crate) fn turned(&self, degrees: f32) -> Self {
        let (sine, cosine) = degrees.to_radians().sin_cos();
        let middle = ((self.width - 1) as f32 / 2.0, (self.height - 1) as f32 / 2.0);
        let mut data = Vec::with_capacity(self.data.len());
        for y in 0..self.height {
            for x in 0..self.width {
                let (dx, dy) = (x as f32 - middle.0, y as f32 - middle.1);
                let from = (middle.0 + cosine * dx + sine * dy, middle.1 - sine * dx + cosine * dy);
                self.between(from.0, from.1, &mut data);
            }
        }
        Self { data, ..*self }
    }

    /// Append the pixel at a place between others, each weighted by its nearness.
    fn between(&self, x: f32, y: f32, into: &mut Vec<u8>) {
        let x = x.clamp(0.0, (self.width - 1) as f32);
        let y = y.clamp(0.0, (self.height - 1) as f32);
        let (left, top) = (x as usize, y as usize);
        let right = (left + 1).min(self.width as usize - 1);
        let below = (top + 1).min(self.height as usize - 1);
        let (across, down) = (x - left as f32, y - top as f32);
        let (row, step) = (self.row(), self.step());
        for channel in 0..step {
            let at = |x: usize, y: usize| f32::from(self.data[y * row + x * step + channel]);
            let upper = at(left, top) * (1.0 - across) + at(right, top) * across;
            let lower = at(left, below) * (1.0 - across) + at(right, below) * across;
            into.push(rounded(upper * (1.0 - down) + lower * down));
        }
    }

    /// Every colour changed alone, by what each of the 256 values becomes.
    pub(crate) fn mapped(mut self, change: impl Fn(f32) -> f32) -> Self {
        let table: [u8; 256] = std::array::from_fn(|value| rounded(change(value as f32)));
        let (step, colours) = (self.step(), self.colours());
        for pixel in self.data.chunks_exact_mut(step) {
            for value in &mut pixel[..colours] {
                *value = table[usize::from(*value)];
            }
        }
        self
    }

    /// The mean over all pixels and colours.
    pub(crate) fn mean(&self) -> f32 {
        let colours = self.colours();
        let sum: u64 = self
            .data
            .chunks_exact(self.step())
            .flat_map(|pixel| &pixel[..colours])
            .map(|value| u64::from(*value))
            .sum();
        let count = self.data.len() / self.step() * colours;
        sum as f32 / count.max(1) as f32
    }

    /// Colours drawn towards grey, below 1, or away from it, above. Grey stays grey.
    pub(crate) fn coloured(mut self, factor: f32) -> Self {
        if self.channels < 3 {
            return self;
        }
        let step = self.step();
        for pixel in self.data.chunks_exact_mut(step) {
            // Luma of ITU-R BT.601, as JPEG has it.
            let grey = 0.299 * f32::from(pixel[0])
                + 0.587 * f32::from(pixel[1])
                + 0.114 * f32::from(pixel[2]);
            for value in &mut pixel[..3] {
                *value = rounded(grey + factor * (f32::from(*value) - grey));
            }
        }
        self
    }

    /// Something added to every colour of every pixel.
    pub(crate) fn disturbed(mut self, mut by: impl FnMut() -> f32) -> Self {
        let (step, colours) = (self.step(), self.colours());
        for pixel in self.data.chunks_exact_mut(step) {
            for value in &mut pixel[..colours] {
                *value = rounded(f32::from(*value) + by());
            }
        }
        self
    }
}

fn rounded(value: f32) -> u8 {
    // Conversion cuts to what fits.
    (value + 0.5) as u8
}
