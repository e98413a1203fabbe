//! Decodes one instruction: opcode with its suffixes, and operands.

use crate::instr::{Address, AtomicOp, Compare, Math, Op, Order, Scope, Special, Src, Type};
use crate::module::Param;
use crate::parse::ParseError;
use std::collections::HashMap;

/// What symbols stand for in one kernel.
pub(crate) struct Symbols<'a> {
    pub params: &'a [Param],
    pub shared: &'a HashMap<String, u64>,
    pub labels: &'a HashMap<String, usize>,
    pub registers: HashMap<String, u32>,
}

impl Symbols<'_> {
    pub fn register(&mut self, name: &str) -> u32 {
        let next = self.registers.len() as u32;
        *self.registers.entry(name.to_owned()).or_insert(next)
    }

    fn source(&mut self, text: &str) -> Option<Src> {
        if let Some(value) = number(text) {
            return Some(Src::Imm(value));
        }
        if let Some(at) = self.shared.get(text) {
            return Some(Src::Imm(*at));
        }
        Some(match text {
            "%tid.x" => Src::Special(Special::Tid),
            "%ntid.x" => Src::Special(Special::Ntid),
            "%ctaid.x" => Src::Special(Special::Ctaid),
            "%nctaid.x" => Src::Special(Special::Nctaid),
            // Launches have one dimension.
            "%tid.y" | "%tid.z" | "%ctaid.y" | "%ctaid.z" => Src::Imm(0),
            "%ntid.y" | "%ntid.z" | "%nctaid.y" | "%nctaid.z" => Src::Imm(1),
            _ => Src::Reg(self.destination(text)?),
        })
    }

    fn destination(&mut self, text: &str) -> Option<u32> {
        let named = text.starts_with('%') && !text.contains('.') || text == "p";
        named.then(|| self.register(text))
    }

    fn address(&mut self, text: &str) -> Option<Address> {
        let inside = text.strip_prefix('[')?.strip_suffix(']')?.trim();
        let (base, offset) = match inside.split_once('+') {
            Some((base, offset)) => (base.trim(), number(offset.trim())? as i64),
            None => (inside, 0),
        };
        Some(Address { base: self.source(base)?, offset })
    }

    /// Members of `{a, b}`, or the one operand.
    fn members(text: &str) -> Vec<&str> {
        match text.strip_prefix('{').and_then(|t| t.strip_suffix('}')) {
            Some(inside) => inside.split(',').map(str::trim).collect(),
            None => vec![text],
        }
    }
}

fn number(text: &str) -> Option<u64> {
    let (negative, digits) = match text.strip_prefix('-') {
        Some(digits) => (true, digits),
        None => (false, text),
    };
    let value = match digits.strip_prefix("0x") {
        Some(hex) => u64::from_str_radix(hex.trim_end_matches('U'), 16).ok()?,
        None => digits.trim_end_matches('U').parse().ok()?,
    };
    Some(if negative { value.wrapping_neg() } else { value })
}

/// A type's name without the dot.
pub(crate) fn type_of(name: &str) -> Option<Type> {
    let kind = name.get(..1).filter(|kind| ["u", "s", "b"].contains(kind))?;
    let width = match &name[1..] {
        "8" => 1,
        "16" => 2,
        "32" => 4,
        "64" => 8,
        _ => return None,
    };
    Some(Type { width, signed: kind == "s" })
}

fn order(suffixes: &[&str]) -> Order {
    let has = |name: &str| suffixes.contains(&name);
    let scope = if has("sys") {
        Scope::Sys
    } else if has("cta") {
        Scope::Cta
    } else {
        Scope::Gpu
    };
    let both = has("acq_rel") || has("sc");
    let (acquire, release) = (has("acquire") || both, has("release") || both);
    let strong = acquire || release || has("relaxed") || has("volatile");
    Order { strong, acquire, release, scope }
}

/// Operands, separated by commas outside brackets.
fn operands(text: &str) -> Vec<String> {
    let (mut all, mut current, mut depth) = (Vec::new(), String::new(), 0i32);
    for c in text.chars() {
        match c {
            '{' | '[' => depth += 1,
            '}' | ']' => depth -= 1,
            _ => {}
        }
        if c == ',' && depth == 0 {
            all.push(std::mem::take(&mut current).trim().to_owned());
        } else {
            current.push(c);
        }
    }
    if !current.trim().is_empty() {
        all.push(current.trim().to_owned());
    }
    all
}

/// Decodes the instruction `text`, without its predicate.
pub(crate) fn decode(text: &str, symbols: &mut Symbols<'_>) -> Result<Op, ParseError> {
    let (opcode, rest) = text.split_once(' ').unwrap_or((text, ""));
    let mut suffixes = opcode.split('.');
    let name = suffixes.next().unwrap_or_default();
    let suffixes: Vec<&str> = suffixes.collect();
    let args = operands(rest);
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    if name == "bra" {
        let label = args.first().copied().unwrap_or_default();
        let at = symbols.labels.get(label).ok_or_else(|| ParseError::Label(label.to_owned()))?;
        return Ok(Op::Branch(*at));
    }
    let found = match name {
        "ld" | "st" | "atom" | "red" | "fence" | "membar" => {
            memory(name, &suffixes, &args, symbols)
        }
        "mbarrier" | "cp" => bulk(name, &suffixes, &args, symbols),
        _ => plain(name, &suffixes, &args, symbols),
    };
    found.ok_or_else(|| ParseError::Unknown(text.to_owned()))
}

fn memory(name: &str, suffixes: &[&str], args: &[&str], symbols: &mut Symbols<'_>) -> Option<Op> {
    if name == "fence" && suffixes.contains(&"proxy") {
        return Some(Op::ProxyFence);
    }
    let order = order(suffixes);
    if name == "fence" || name == "membar" {
        return Some(Op::Fence(Order { strong: true, acquire: true, release: true, ..order }));
    }
    let ty = type_of(suffixes.last()?)?;
    let shared = suffixes.iter().any(|s| s.starts_with("shared"));
    match name {
        "ld" if suffixes.contains(&"param") => {
            let inside = args.get(1)?.strip_prefix('[')?.strip_suffix(']')?;
            let index = symbols.params.iter().position(|p| p.name == inside)?;
            Some(Op::Param { dst: symbols.destination(args[0])?, index, ty })
        }
        "ld" => {
            let dst = Symbols::members(args.first()?).into_iter().map(|r| symbols.destination(r));
            let dst = dst.collect::<Option<Vec<_>>>()?;
            Some(Op::Load { dst, at: symbols.address(args.get(1)?)?, ty, order, shared })
        }
        "st" => {
            let src = Symbols::members(args.get(1)?).into_iter().map(|r| symbols.source(r));
            let src = src.collect::<Option<Vec<_>>>()?;
            Some(Op::Store { src, at: symbols.address(args[0])?, ty, order, shared })
        }
        _ => {
            let op = if suffixes.contains(&"add") {
                AtomicOp::Add
            } else if suffixes.contains(&"exch") {
                AtomicOp::Exchange
            } else if suffixes.contains(&"cas") {
                AtomicOp::CompareExchange
            } else if suffixes.contains(&"max") {
                AtomicOp::Max(ty.signed)
            } else {
                return None;
            };
            let first = usize::from(name == "atom");
            let dst = match name {
                "atom" => Some(symbols.destination(args.first()?)?),
                _ => None,
            };
            let at = symbols.address(args.get(first)?)?;
            let a = symbols.source(args.get(first + 1)?)?;
            let b = args.get(first + 2).map_or(Some(Src::Imm(0)), |b| symbols.source(b))?;
            Some(Op::Atomic { dst, at, ty, order: Order { strong: true, ..order }, op, a, b })
        }
    }
}

fn bulk(name: &str, suffixes: &[&str], args: &[&str], symbols: &mut Symbols<'_>) -> Option<Op> {
    let has = |s: &str| suffixes.contains(&s);
    let mut at = |i: usize| args.get(i).and_then(|t| symbols.address(t)).map(|a: Address| a.base);
    if name == "mbarrier" && has("init") {
        return Some(Op::BarrierInit { at: at(0)? });
    }
    if name == "mbarrier" && has("expect_tx") {
        return Some(Op::BarrierExpect { at: at(1)?, bytes: symbols.source(args.get(2)?)? });
    }
    if name == "mbarrier" && has("try_wait") {
        let at = at(1)?;
        let dst = symbols.destination(args.first()?)?;
        return Some(Op::BarrierTry { dst, at, parity: symbols.source(args.get(2)?)? });
    }
    if !(has("async") && has("bulk")) {
        return None;
    }
    if has("commit_group") {
        return Some(Op::Nothing);
    }
    if has("wait_group") {
        let left = args.first()?.parse().ok()?;
        return Some(Op::BulkWait { left, written: !has("read") && left == 0 });
    }
    let (to, from) = (at(0)?, at(1)?);
    let barrier = at(3);
    let bytes = symbols.source(args.get(2)?)?;
    match barrier {
        Some(barrier) => Some(Op::BulkToShared { to, from, bytes, barrier }),
        None => Some(Op::BulkToGlobal { to, from, bytes }),
    }
}

fn plain(name: &str, suffixes: &[&str], args: &[&str], symbols: &mut Symbols<'_>) -> Option<Op> {
    match name {
        "ret" | "exit" => return Some(Op::Exit),
        "bar" | "barrier" => return (suffixes == ["sync"]).then_some(Op::Barrier),
        "nanosleep" => return Some(Op::Nothing),
        _ => {}
    }
    let dst = symbols.destination(args.first()?)?;
    let last = *suffixes.last()?;
    let a = symbols.source(args.get(1)?)?;
    if matches!(name, "mov" | "cvta") {
        return Some(Op::Move { dst, src: a });
    }
    let ty = if last == "pred" { Type { width: 8, signed: false } } else { type_of(last)? };
    let b = args.get(2).map_or(Some(Src::Imm(0)), |b| symbols.source(b))?;
    if name == "cvt" {
        let to = type_of(suffixes.get(suffixes.len().checked_sub(2)?)?)?;
        return Some(Op::Convert { dst, src: a, to, from: ty });
    }
    if name == "selp" {
        return Some(Op::Select { dst, a, b, condition: symbols.source(args.get(3)?)? });
    }
    if name == "setp" {
        let compare = match *suffixes.first()? {
            "eq" => Compare::Eq,
            "ne" => Compare::Ne,
            "lt" | "lo" => Compare::Lt,
            "le" | "ls" => Compare::Le,
            "gt" | "hi" => Compare::Gt,
            "ge" | "hs" => Compare::Ge,
            _ => return None,
        };
        return (suffixes.len() == 2).then_some(Op::Compare { dst, compare, ty, a, b });
    }
    let add = args.get(3).map_or(Some(Src::Imm(0)), |c| symbols.source(c))?;
    let math = arithmetic(name, suffixes)?;
    // Negation of a predicate is of its truth, not of its bits.
    if last == "pred" && math == Math::Not {
        return Some(Op::Math { dst, math: Math::Xor, ty, a, b: Src::Imm(1), add });
    }
    Some(Op::Math { dst, math, ty, a, b, add })
}

fn arithmetic(name: &str, suffixes: &[&str]) -> Option<Math> {
    Some(match name {
        "add" => Math::Add,
        "sub" => Math::Sub,
        "mul" | "mad" if suffixes.contains(&"wide") => Math::MulWide,
        "mul" | "mad" if suffixes.contains(&"hi") => Math::MulHi,
        "mul" | "mad" => Math::Mul,
        "and" => Math::And,
        "or" => Math::Or,
        "xor" => Math::Xor,
        "not" => Math::Not,
        "neg" => Math::Neg,
        "shl" => Math::Shl,
        "shr" => Math::Shr,
        "min" => Math::Min,
        "max" => Math::Max,
        "div" => Math::Div,
        "rem" => Math::Rem,
        _ => return None,
    })
}
