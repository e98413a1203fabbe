//! From text to decoded instructions. What it does not know is an error that names the statement.

use crate::instr::{Instr, Op};
use crate::module::{Kernel, Module, Param};
use crate::operands::{Symbols, decode, type_of};
use std::collections::{BTreeMap, HashMap};

/// Most bytes of a kernel's shared variables, more than any GPU has.
const MAX_SHARED: u64 = 1 << 20;

/// Why a text is not a module that can be run.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ParseError {
    /// A kernel's parentheses or braces do not match.
    #[error("kernel {0} has no complete parameter list and body")]
    Incomplete(String),
    /// A statement, an operand or a type that this interpreter does not know.
    #[error("unknown statement: {0}")]
    Unknown(String),
    /// A branch to a label that the kernel does not have.
    #[error("unknown label: {0}")]
    Label(String),
    /// The text contains no kernel.
    #[error("no kernel")]
    Empty,
}

impl Module {
    /// Parses the text of a module. Lines of debug information are ignored.
    pub fn parse(text: &str) -> Result<Module, ParseError> {
        let mut plain = String::with_capacity(text.len());
        for line in text.lines() {
            let line = line.split("//").next().unwrap_or_default();
            let start = line.trim_start();
            if !start.starts_with(".loc") && !start.starts_with(".file") {
                plain.push_str(line);
                plain.push('\n');
            }
        }
        let external = external_shared(&plain);
        let mut kernels = BTreeMap::new();
        let mut rest = plain.as_str();
        while let Some(at) = rest.find(".entry") {
            rest = &rest[at + ".entry".len()..];
            let end = rest.find(['(', '{']).unwrap_or(rest.len());
            let name = rest[..end].trim().to_owned();
            let incomplete = || ParseError::Incomplete(name.clone());
            let (params, after) = between(rest, '(', ')').ok_or_else(incomplete)?;
            let (body, after) = between(after, '{', '}').ok_or_else(incomplete)?;
            let kernel = kernel(params, body, &external)?;
            kernels.insert(name, kernel);
            rest = after;
        }
        if kernels.is_empty() {
            return Err(ParseError::Empty);
        }
        Ok(Module { kernels })
    }
}

/// The text inside the first matching pair, and what follows it.
fn between(text: &str, open: char, close: char) -> Option<(&str, &str)> {
    let start = text.find(open)?;
    let mut depth = 0usize;
    for (i, c) in text[start..].char_indices() {
        if c == open {
            depth += 1;
        } else if c == close {
            depth -= 1;
            if depth == 0 {
                let end = start + i;
                return Some((&text[start + 1..end], &text[end + 1..]));
            }
        }
    }
    None
}

/// Symbols of `.extern .shared` arrays, whose size the launch gives.
fn external_shared(text: &str) -> Vec<String> {
    let lines = text.lines().filter(|line| line.trim_start().starts_with(".extern .shared"));
    let names =
        lines.filter_map(|line| line.trim().trim_end_matches(';').split_whitespace().last());
    names.map(|name| name.trim_end_matches("[]").to_owned()).collect()
}

fn kernel(params: &str, body: &str, external: &[String]) -> Result<Kernel, ParseError> {
    let params = params.split(',').filter(|p| !p.trim().is_empty()).map(param);
    let params = params.collect::<Result<Vec<_>, _>>()?;
    let statements = statements(body);
    let mut shared = HashMap::new();
    let mut shared_bytes = 0u64;
    for text in statements.iter().filter(|text| text.starts_with(".shared")) {
        shared_bytes = shared_bytes.next_multiple_of(16);
        let (name, bytes) = variable(text)?;
        shared.insert(name, shared_bytes);
        shared_bytes = shared_bytes.saturating_add(bytes);
        if shared_bytes > MAX_SHARED {
            return Err(ParseError::Unknown(text.clone()));
        }
    }
    shared_bytes = shared_bytes.next_multiple_of(128);
    for name in external {
        shared.insert(name.clone(), shared_bytes);
    }
    let mut labels = HashMap::new();
    let mut count = 0;
    for text in statements.iter().filter(|text| !text.starts_with('.')) {
        match text.strip_suffix(':') {
            Some(label) => {
                labels.insert(label.to_owned(), count);
            }
            None => count += 1,
        }
    }
    let mut symbols =
        Symbols { params: &params, shared: &shared, labels: &labels, registers: HashMap::new() };
    let mut code = Vec::new();
    for text in statements.iter().filter(|text| !text.starts_with('.') && !text.ends_with(':')) {
        code.push(statement(text, &mut symbols)?);
    }
    // A body that ends without `ret` ends there.
    code.push(Instr { guard: None, op: Op::Exit, text: "ret".to_owned() });
    let registers = symbols.registers.len();
    Ok(Kernel { params, code, registers, shared_bytes })
}

fn param(text: &str) -> Result<Param, ParseError> {
    let unknown = || ParseError::Unknown(text.trim().to_owned());
    let name = text.split_whitespace().last().ok_or_else(unknown)?;
    let ty = text.split_whitespace().find_map(|word| type_of(word.trim_start_matches('.')));
    Ok(Param { name: name.to_owned(), width: ty.ok_or_else(unknown)?.width })
}

/// Statements without their semicolons. Braces inside a body only limit names and are dropped,
/// except those of vectors.
fn statements(body: &str) -> Vec<String> {
    let mut all = Vec::new();
    let mut current = String::new();
    for c in body.chars() {
        match c {
            ';' => all.push(std::mem::take(&mut current)),
            ':' if current.trim_start_matches(['{', '}', ' ', '\t', '\n']).starts_with('$') => {
                current.push(':');
                all.push(std::mem::take(&mut current));
            }
            _ => current.push(c),
        }
    }
    let outside = |text: &String| {
        let text = text.trim_start_matches(|c: char| c == '{' || c == '}' || c.is_whitespace());
        text.split_whitespace().collect::<Vec<_>>().join(" ")
    };
    all.iter().map(outside).filter(|text| !text.is_empty()).collect()
}

/// Name and bytes of a `.shared` variable.
fn variable(text: &str) -> Result<(String, u64), ParseError> {
    let unknown = || ParseError::Unknown(text.to_owned());
    let declared = text.split_whitespace().last().ok_or_else(unknown)?;
    let ty = text.split_whitespace().find_map(|word| type_of(word.trim_start_matches('.')));
    let width = u64::from(ty.ok_or_else(unknown)?.width);
    match declared.split_once('[') {
        None => Ok((declared.to_owned(), width)),
        Some((name, length)) => {
            let length = length.trim_end_matches(']').parse::<u64>().map_err(|_| unknown())?;
            Ok((name.to_owned(), width.saturating_mul(length)))
        }
    }
}

fn statement(text: &str, symbols: &mut Symbols<'_>) -> Result<Instr, ParseError> {
    let (mut guard, mut rest) = (None, text);
    if let Some(after) = text.strip_prefix('@') {
        let unknown = || ParseError::Unknown(text.to_owned());
        let (predicate, instruction) = after.split_once(' ').ok_or_else(unknown)?;
        guard =
            Some((symbols.register(predicate.trim_start_matches('!')), predicate.starts_with('!')));
        rest = instruction;
    }
    Ok(Instr { guard, op: decode(rest, symbols)?, text: text.to_owned() })
}
