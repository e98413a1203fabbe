//! One thread's registers, and the instructions that touch nothing else.

use crate::instr::{Compare, Math, Special, Src, Type};

#[derive(Debug)]
pub(crate) struct Thread {
    pub pc: usize,
    pub registers: Vec<u64>,
    pub done: bool,
    pub waiting: bool,
    /// Number in its block.
    pub tid: u32,
    pub block: usize,
}

impl Thread {
    pub fn value(&self, src: Src, (grid, block): (u32, u32)) -> u64 {
        match src {
            Src::Reg(r) => self.registers[r as usize],
            Src::Imm(value) => value,
            Src::Special(Special::Tid) => u64::from(self.tid),
            Src::Special(Special::Ntid) => u64::from(block),
            Src::Special(Special::Ctaid) => self.block as u64,
            Src::Special(Special::Nctaid) => u64::from(grid),
        }
    }

    pub fn set(&mut self, dst: u32, value: u64) {
        self.registers[dst as usize] = value;
    }
}

pub(crate) fn compare(op: Compare, ty: Type, a: u64, b: u64) -> bool {
    let (a, b) = (ty.extend(a), ty.extend(b));
    let order = if ty.signed { (a as i64).cmp(&(b as i64)) } else { a.cmp(&b) };
    match op {
        Compare::Eq => order.is_eq(),
        Compare::Ne => order.is_ne(),
        Compare::Lt => order.is_lt(),
        Compare::Le => order.is_le(),
        Compare::Gt => order.is_gt(),
        Compare::Ge => order.is_ge(),
    }
}

/// The result, `None` for a division by zero. `add` is the third operand of a multiply-add.
pub(crate) fn compute(math: Math, ty: Type, a: u64, b: u64, add: u64) -> Option<u64> {
    let bits = u64::from(ty.width) * 8;
    let (x, y) = (ty.extend(a), ty.extend(b));
    let pick = |a_first: bool| if a_first { x } else { y };
    let less = if ty.signed { (x as i64) < (y as i64) } else { x < y };
    let result = match math {
        Math::Add => a.wrapping_add(b),
        Math::Sub => a.wrapping_sub(b),
        Math::Mul => a.wrapping_mul(b).wrapping_add(add),
        Math::MulWide => return Some(x.wrapping_mul(y).wrapping_add(add)),
        Math::MulHi if ty.signed => ((i128::from(x as i64) * i128::from(y as i64)) >> bits) as u64,
        Math::MulHi => ((u128::from(x) * u128::from(y)) >> bits) as u64,
        Math::And => a & b,
        Math::Or => a | b,
        Math::Xor => a ^ b,
        Math::Not => !a,
        Math::Neg => a.wrapping_neg(),
        // The amount is 32 bits, and one of the width or more shifts everything out.
        Math::Shl => a.checked_shl(b as u32).filter(|_| (b & 0xffff_ffff) < bits).unwrap_or(0),
        Math::Shr if ty.signed => ((x as i64) >> (b & 0xffff_ffff).min(63)) as u64,
        Math::Shr => x.checked_shr(b as u32).filter(|_| (b & 0xffff_ffff) < bits).unwrap_or(0),
        Math::Min => pick(less),
        Math::Max => pick(!less),
        Math::Div if ty.signed => (x as i64).checked_div(y as i64)? as u64,
        Math::Rem if ty.signed => (x as i64).checked_rem(y as i64)? as u64,
        Math::Div => x.checked_div(y)?,
        Math::Rem => x.checked_rem(y)?,
    };
    Some(ty.mask(result))
}
