//! A parsed module, its kernels and their parameters.

use crate::instr::Instr;
use std::collections::BTreeMap;

/// The kernels of one PTX text.
#[derive(Debug, Clone)]
pub struct Module {
    pub(crate) kernels: BTreeMap<String, Kernel>,
}

impl Module {
    /// The kernel of this name.
    pub fn kernel(&self, name: &str) -> Option<&Kernel> {
        self.kernels.get(name)
    }

    /// The names of its kernels, sorted.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.kernels.keys().map(String::as_str)
    }
}

/// A parameter of a kernel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Param {
    /// Its name in the text.
    pub name: String,
    /// Its size in bytes: 1, 2, 4 or 8.
    pub width: u8,
}

/// One kernel, decoded.
#[derive(Debug, Clone)]
pub struct Kernel {
    pub(crate) params: Vec<Param>,
    pub(crate) code: Vec<Instr>,
    pub(crate) registers: usize,
    /// Bytes of its shared variables; the launch's own follow.
    pub(crate) shared_bytes: u64,
}

impl Kernel {
    /// Its parameters, in order.
    pub fn params(&self) -> &[Param] {
        &self.params
    }
}
