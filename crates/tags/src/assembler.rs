//! An assembler of BPF instructions (Documentation/bpf/standardization/instruction-set.rst), with labels for jumps.
//!
//! Arrives: instructions, in order. Leaves: their bytes, jumps resolved. Must not know: what a program does.

/// One instruction, as the kernel takes it.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Instruction {
    code: u8,
    registers: u8,
    offset: i16,
    immediate: i32,
}

/// A place to jump to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Label(usize);

/// A register, 0 to 10.
pub(crate) type Register = u8;

/// Width of a memory access.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Width {
    Byte = 0x10,
    Half = 0x08,
    Word = 0x00,
    Double = 0x18,
}

/// A 64-bit operation on registers.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Op {
    Add = 0x00,
    Sub = 0x10,
    Multiply = 0x20,
    Or = 0x40,
    And = 0x50,
    Left = 0x60,
    Right = 0x70,
    ExclusiveOr = 0xa0,
    Move = 0xb0,
    ArithmeticRight = 0xc0,
}

/// When to jump; unsigned.
#[derive(Clone, Copy, Debug)]
pub(crate) enum When {
    Equal = 0x10,
    Greater = 0x20,
    GreaterEqual = 0x30,
    NotEqual = 0x50,
}

const ALU64: u8 = 0x07;
const JUMP: u8 = 0x05;
const FROM_REGISTER: u8 = 0x08;
const MEMORY: u8 = 0x60;
const TO_BIG_ENDIAN: u8 = 0xdc;
const PSEUDO_MAP: u8 = 1;

/// A program under construction.
#[derive(Debug, Default)]
pub(crate) struct Assembler {
    made: Vec<Instruction>,
    places: Vec<Option<usize>>,
    jumps: Vec<(usize, Label)>,
}

impl Assembler {
    /// A label that is not placed yet.
    pub(crate) fn label(&mut self) -> Label {
        self.places.push(None);
        Label(self.places.len() - 1)
    }

    /// Places a label before the next instruction.
    pub(crate) fn place(&mut self, label: Label) {
        self.places[label.0] = Some(self.made.len());
    }

    fn push(&mut self, code: u8, to: Register, from: Register, offset: i16, immediate: i32) {
        let registers = to | from << 4;
        self.made.push(Instruction { code, registers, offset, immediate });
    }

    /// `to = to OP value`
    pub(crate) fn immediate(&mut self, op: Op, to: Register, value: i32) {
        self.push(ALU64 | op as u8, to, 0, 0, value);
    }

    /// `to = to OP from`
    pub(crate) fn register(&mut self, op: Op, to: Register, from: Register) {
        self.push(ALU64 | FROM_REGISTER | op as u8, to, from, 0, 0);
    }

    /// `to = value`, of 64 bits.
    pub(crate) fn constant(&mut self, to: Register, value: u64) {
        self.double(to, 0, value);
    }

    /// `to = the map with this descriptor`
    pub(crate) fn map(&mut self, to: Register, descriptor: i32) {
        self.double(to, PSEUDO_MAP, u64::from(descriptor.unsigned_abs()));
    }

    fn double(&mut self, to: Register, kind: Register, value: u64) {
        #[allow(clippy::cast_possible_truncation, clippy::cast_possible_wrap)]
        let (low, high) = (value as u32 as i32, (value >> 32) as u32 as i32);
        self.push(0x18, to, kind, 0, low);
        self.push(0, 0, 0, 0, high);
    }

    /// `to = *(from + offset)`
    pub(crate) fn load(&mut self, width: Width, to: Register, from: Register, offset: i16) {
        self.push(0x01 | MEMORY | width as u8, to, from, offset, 0);
    }

    /// `*(to + offset) = from`
    pub(crate) fn store(&mut self, width: Width, to: Register, offset: i16, from: Register) {
        self.push(0x03 | MEMORY | width as u8, to, from, offset, 0);
    }

    /// `to = to, its low `bits` in network byte order`
    pub(crate) fn network_order(&mut self, to: Register, bits: i32) {
        self.push(TO_BIG_ENDIAN, to, 0, 0, bits);
    }

    /// Calls a function of the kernel.
    pub(crate) fn call(&mut self, function: i32) {
        self.push(0x85, 0, 0, 0, function);
    }

    /// Jumps if `left WHEN value`.
    pub(crate) fn jump_if(&mut self, when: When, left: Register, value: i32, label: Label) {
        self.jumps.push((self.made.len(), label));
        self.push(JUMP | when as u8, left, 0, 0, value);
    }

    /// Jumps if `left WHEN right`, both registers.
    pub(crate) fn jump_if_register(
        &mut self,
        when: When,
        left: Register,
        right: Register,
        label: Label,
    ) {
        self.jumps.push((self.made.len(), label));
        self.push(JUMP | FROM_REGISTER | when as u8, left, right, 0, 0);
    }

    /// Jumps.
    pub(crate) fn jump(&mut self, label: Label) {
        self.jumps.push((self.made.len(), label));
        self.push(JUMP, 0, 0, 0, 0);
    }

    /// Ends the program with register 0 as result.
    pub(crate) fn exit(&mut self) {
        self.push(0x95, 0, 0, 0, 0);
    }

    /// The instructions, jumps resolved.
    ///
    /// # Panics
    /// If a label was not placed, or is further away than an offset reaches: an error in this crate.
    pub(crate) fn finish(mut self) -> Vec<Instruction> {
        for (at, label) in self.jumps {
            let place = self.places[label.0].expect("every label is placed");
            let distance = i64::try_from(place).expect("short") - i64::try_from(at).expect("short");
            self.made[at].offset = i16::try_from(distance - 1).expect("within reach");
        }
        self.made
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instructions_have_the_bytes_of_the_specification() {
        let mut a = Assembler::default();
        let end = a.label();
        a.register(Op::Move, 6, 1);
        a.load(Width::Word, 2, 6, 76);
        a.jump_if(When::Equal, 2, 0, end);
        a.constant(3, 0x1122_3344_5566_7788);
        a.store(Width::Double, 10, -8, 3);
        a.network_order(3, 64);
        a.place(end);
        a.immediate(Op::Move, 0, -1);
        a.exit();
        let made = a.finish();
        let of =
            |code, registers, offset, immediate| Instruction { code, registers, offset, immediate };
        assert_eq!(
            made,
            [
                of(0xbf, 0x16, 0, 0),
                of(0x61, 0x62, 76, 0),
                of(0x15, 0x02, 4, 0),
                of(0x18, 0x03, 0, 0x5566_7788),
                of(0x00, 0x00, 0, 0x1122_3344),
                of(0x7b, 0x3a, -8, 0),
                of(0xdc, 0x03, 0, 64),
                of(0xb7, 0x00, 0, -1),
                of(0x95, 0x00, 0, 0),
            ]
        );
    }
}
