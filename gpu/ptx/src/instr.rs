//! Decoded instructions. Every name of a register, parameter, variable or label is resolved.

/// A type: its size in bytes, and whether it has a sign.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Type {
    pub width: u8,
    pub signed: bool,
}

impl Type {
    pub fn mask(self, v: u64) -> u64 {
        match self.width {
            1 => v & 0xff,
            2 => v & 0xffff,
            4 => v & 0xffff_ffff,
            _ => v,
        }
    }

    /// The value with its sign extended to 64 bits, or with zeros.
    pub fn extend(self, v: u64) -> u64 {
        match (self.signed, self.width) {
            (true, 1) => v as u8 as i8 as u64,
            (true, 2) => v as u16 as i16 as u64,
            (true, 4) => v as u32 as i32 as u64,
            _ => self.mask(v),
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Special {
    Tid,
    Ntid,
    Ctaid,
    Nctaid,
}

#[derive(Debug, Clone, Copy)]
pub(crate) enum Src {
    Reg(u32),
    Imm(u64),
    Special(Special),
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct Address {
    pub base: Src,
    pub offset: i64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Scope {
    Cta,
    Gpu,
    Sys,
}

/// Memory order of one access. A weak access has neither flag and is not `strong`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Order {
    pub strong: bool,
    pub acquire: bool,
    pub release: bool,
    pub scope: Scope,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AtomicOp {
    Add,
    Exchange,
    CompareExchange,
    /// Of numbers with a sign, or without.
    Max(bool),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Compare {
    Eq,
    Ne,
    Lt,
    Le,
    Gt,
    Ge,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Math {
    Add,
    Sub,
    Mul,
    MulHi,
    MulWide,
    And,
    Or,
    Xor,
    Not,
    Neg,
    Shl,
    Shr,
    Min,
    Max,
    Div,
    Rem,
}

#[derive(Debug, Clone)]
pub(crate) enum Op {
    Exit,
    Branch(usize),
    Barrier,
    Nothing,
    Param {
        dst: u32,
        index: usize,
        ty: Type,
    },
    Load {
        dst: Vec<u32>,
        at: Address,
        ty: Type,
        order: Order,
        shared: bool,
    },
    Store {
        src: Vec<Src>,
        at: Address,
        ty: Type,
        order: Order,
        shared: bool,
    },
    Atomic {
        dst: Option<u32>,
        at: Address,
        ty: Type,
        order: Order,
        op: AtomicOp,
        a: Src,
        b: Src,
    },
    Fence(Order),
    Move {
        dst: u32,
        src: Src,
    },
    Convert {
        dst: u32,
        src: Src,
        to: Type,
        from: Type,
    },
    Select {
        dst: u32,
        a: Src,
        b: Src,
        condition: Src,
    },
    Compare {
        dst: u32,
        compare: Compare,
        ty: Type,
        a: Src,
        b: Src,
    },
    Math {
        dst: u32,
        math: Math,
        ty: Type,
        a: Src,
        b: Src,
        add: Src,
    },
    BarrierInit {
        at: Src,
    },
    BarrierExpect {
        at: Src,
        bytes: Src,
    },
    BarrierTry {
        dst: u32,
        at: Src,
        parity: Src,
    },
    BulkToShared {
        to: Src,
        from: Src,
        bytes: Src,
        barrier: Src,
    },
    BulkToGlobal {
        to: Src,
        from: Src,
        bytes: Src,
    },
    /// Until at most `left` copies have still to read shared memory, or, if `written`, until none
    /// has still to write.
    BulkWait {
        left: usize,
        written: bool,
    },
    ProxyFence,
}

#[derive(Debug, Clone)]
pub(crate) struct Instr {
    /// Predicate register, and whether it is negated.
    pub guard: Option<(u32, bool)>,
    pub op: Op,
    /// Its text, for errors.
    pub text: String,
}
