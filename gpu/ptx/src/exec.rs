//! Runs a launch: a random thread executes some instructions, then another. The seed decides the
//! schedule, so one thread of the processor can interleave several launches reproducibly.

use crate::instr::{Address, Op, Src};
use crate::memory::{Memory, Stale};
use crate::module::Kernel;
use crate::rng::Rng;
use crate::thread::{Thread, compare, compute};
use std::collections::VecDeque;

/// Most threads of one launch.
const MAX_THREADS: u32 = 1 << 16;
/// Most bytes of dynamic shared memory of all blocks together.
const MAX_SHARED: u64 = 1 << 30;
/// Most instructions that one thread executes before another is chosen.
const BURST: usize = 24;
/// Bytes of an mbarrier object in shared memory: phase, arrivals and bytes that it waits for.
const BARRIER_BYTES: usize = 8;

/// One launch of a kernel.
#[derive(Debug, Clone)]
pub struct Launch {
    /// Blocks.
    pub grid: u32,
    /// Threads of a block.
    pub block: u32,
    /// One value for each parameter.
    pub args: Vec<u64>,
    /// Decides the schedule.
    pub seed: u64,
    /// Of 1,000 instructions, before how many a buffered store becomes visible.
    pub drain: u32,
    /// Memory of which weak loads may return old content.
    pub stale: Option<Stale>,
    /// Bytes of dynamic shared memory of a block.
    pub shared_bytes: u32,
    /// Instructions of all threads together after which the launch fails.
    pub max_instructions: u64,
}

impl Default for Launch {
    fn default() -> Launch {
        Launch {
            grid: 1,
            block: 32,
            args: Vec::new(),
            seed: 1,
            drain: 10,
            stale: None,
            shared_bytes: 0,
            max_instructions: 1 << 30,
        }
    }
}

/// What a launch did.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Stats {
    /// Instructions executed by all threads.
    pub instructions: u64,
}

/// Why a launch did not run to its end.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ExecError {
    /// The number of arguments is not that of parameters.
    #[error("{given} arguments for {wanted} parameters")]
    Arguments {
        /// Arguments given.
        given: usize,
        /// Parameters of the kernel.
        wanted: usize,
    },
    /// No blocks or threads, or too many.
    #[error("a grid of {grid} blocks of {block} threads")]
    Shape {
        /// Blocks.
        grid: u32,
        /// Threads of a block.
        block: u32,
    },
    /// The blocks' shared memory is more than the interpreter allots.
    #[error("{0} bytes of dynamic shared memory for each block")]
    Shared(u32),
    /// It executed as many instructions as it may.
    #[error("more than {0} instructions")]
    TooLong(u64),
    /// An access that is not aligned, is null, or is outside the shared memory.
    #[error("access to {at:#x} by: {text}")]
    Access {
        /// The address.
        at: u64,
        /// The instruction.
        text: String,
    },
    /// A division by zero, whose result PTX leaves open.
    #[error("division by zero by: {0}")]
    Division(String),
}

/// A launch in progress.
#[derive(Debug)]
pub struct Execution<'k> {
    kernel: &'k Kernel,
    launch: Launch,
    threads: Vec<Thread>,
    live: Vec<usize>,
    memory: Memory,
    /// Bulk copies of each thread.
    unread: Vec<VecDeque<bulk::Unread>>,
    rng: Rng,
    stats: Stats,
}

/// Runs a launch to its end.
///
/// # Safety
///
/// Every address that the kernel computes from the arguments is valid for the access that it makes
/// there, and only atomic accesses are made to it by others meanwhile.
pub unsafe fn run(kernel: &Kernel, launch: &Launch) -> Result<Stats, ExecError> {
    let mut execution = Execution::new(kernel, launch)?;
    // SAFETY: by this function's contract.
    while unsafe { execution.step()? } {}
    Ok(execution.stats)
}

impl<'k> Execution<'k> {
    /// A launch of which nothing has run yet.
    pub fn new(kernel: &'k Kernel, launch: &Launch) -> Result<Execution<'k>, ExecError> {
        let (grid, block) = (launch.grid, launch.block);
        let count = grid.checked_mul(block).filter(|n| (1..=MAX_THREADS).contains(n));
        let count = count.ok_or(ExecError::Shape { grid, block })?;
        if u64::from(grid) * (u64::from(launch.shared_bytes) + kernel.shared_bytes) > MAX_SHARED {
            return Err(ExecError::Shared(launch.shared_bytes));
        }
        let (given, wanted) = (launch.args.len(), kernel.params.len());
        if given != wanted {
            return Err(ExecError::Arguments { given, wanted });
        }
        let thread = |i: u32| Thread {
            pc: 0,
            registers: vec![0; kernel.registers],
            done: false,
            waiting: false,
            tid: i % block,
            block: (i / block) as usize,
        };
        let shared = kernel.shared_bytes as usize + launch.shared_bytes as usize;
        Ok(Execution {
            kernel,
            threads: (0..count).map(thread).collect(),
            live: (0..count as usize).collect(),
            memory: Memory::new(grid as usize, block as usize, shared, launch.stale.clone()),
            unread: (0..count).map(|_| VecDeque::new()).collect(),
            rng: Rng::new(launch.seed),
            stats: Stats::default(),
            launch: launch.clone(),
        })
    }

    /// What it has done so far.
    pub fn stats(&self) -> Stats {
        self.stats
    }

    /// Lets one thread execute some instructions; when all have ended, lets one store become
    /// visible. False when every store is.
    ///
    /// # Safety
    ///
    /// As for [`run`].
    pub unsafe fn step(&mut self) -> Result<bool, ExecError> {
        // SAFETY: by this function's contract.
        let Some(thread) = (unsafe { self.pick() }) else {
            (0..self.unread.len()).for_each(|thread| self.bulk_read(thread, 0));
            // SAFETY: by this function's contract.
            return Ok(unsafe { self.memory.drain_end(&mut self.rng) });
        };
        for _ in 0..=self.rng.below(BURST) {
            if self.stats.instructions >= self.launch.max_instructions {
                return Err(ExecError::TooLong(self.launch.max_instructions));
            }
            self.stats.instructions += 1;
            if !self.unread[thread].is_empty() && self.rng.below(100) == 0 {
                self.bulk_read(thread, self.unread[thread].len() - 1);
            }
            // SAFETY: by this function's contract.
            unsafe {
                if self.rng.below(1000) < self.launch.drain as usize {
                    self.memory.drain_one(thread, &mut self.rng);
                }
                self.instruction(thread)?;
            }
            if self.threads[thread].done || self.threads[thread].waiting {
                break;
            }
        }
        Ok(true)
    }

    /// A random thread that can run. A block whose threads all wait or have ended passes its
    /// barrier.
    ///
    /// # Safety
    ///
    /// As for [`run`].
    unsafe fn pick(&mut self) -> Option<usize> {
        loop {
            while !self.live.is_empty() {
                let at = self.rng.below(self.live.len());
                let thread = self.live[at];
                if !self.threads[thread].done && !self.threads[thread].waiting {
                    return Some(thread);
                }
                self.live.swap_remove(at);
                // SAFETY: by this function's contract.
                unsafe { self.pass_barrier(self.threads[thread].block) };
            }
            if self.threads.iter().all(|thread| thread.done) {
                return None;
            }
        }
    }

    unsafe fn pass_barrier(&mut self, block: usize) {
        let size = self.launch.block as usize;
        let range = block * size..(block + 1) * size;
        let stuck = self.threads[range.clone()].iter().all(|thread| thread.done || thread.waiting);
        if !stuck {
            return;
        }
        // SAFETY: by the caller's contract, which is that of `run`.
        unsafe { self.memory.barrier(block) };
        self.live.retain(|thread| !range.contains(thread));
        for thread in range {
            if !self.threads[thread].done {
                self.threads[thread].waiting = false;
                self.live.push(thread);
            }
        }
    }

    fn value(&self, thread: usize, src: Src) -> u64 {
        self.threads[thread].value(src, (self.launch.grid, self.launch.block))
    }

    unsafe fn instruction(&mut self, thread: usize) -> Result<(), ExecError> {
        let kernel = self.kernel;
        // The last instruction is `ret`, and every label is before it.
        let instr = &kernel.code[self.threads[thread].pc];
        self.threads[thread].pc += 1;
        if let Some((predicate, negated)) = instr.guard
            && (self.threads[thread].registers[predicate as usize] != 0) == negated
        {
            return Ok(());
        }
        match &instr.op {
            Op::Exit => self.threads[thread].done = true,
            Op::Branch(to) => self.threads[thread].pc = *to,
            Op::Barrier => self.threads[thread].waiting = true,
            Op::Nothing => {}
            Op::Param { dst, index, ty } => {
                self.threads[thread].set(*dst, ty.extend(self.launch.args[*index]));
            }
            Op::Move { dst, src } => {
                let value = self.value(thread, *src);
                self.threads[thread].set(*dst, value);
            }
            Op::Convert { dst, src, to, from } => {
                let value = to.mask(from.extend(self.value(thread, *src)));
                self.threads[thread].set(*dst, value);
            }
            Op::Select { dst, a, b, condition } => {
                let chosen = if self.value(thread, *condition) != 0 { a } else { b };
                let value = self.value(thread, *chosen);
                self.threads[thread].set(*dst, value);
            }
            Op::Compare { dst, compare: op, ty, a, b } => {
                let holds = compare(*op, *ty, self.value(thread, *a), self.value(thread, *b));
                self.threads[thread].set(*dst, u64::from(holds));
            }
            Op::Math { dst, math, ty, a, b, add } => {
                let (a, b) = (self.value(thread, *a), self.value(thread, *b));
                let result = compute(*math, *ty, a, b, self.value(thread, *add));
                let result = result.ok_or_else(|| ExecError::Division(instr.text.clone()))?;
                self.threads[thread].set(*dst, result);
            }
            // SAFETY: by this function's contract, which is that of `run`.
            op => unsafe { self.access(thread, op, &instr.text)? },
        }
        Ok(())
    }

    unsafe fn access(&mut self, thread: usize, op: &Op, text: &str) -> Result<(), ExecError> {
        match op {
            Op::Load { dst, at, ty, order, shared } => {
                let at = self.address(thread, *at, ty.width as usize * dst.len(), *shared, text)?;
                for (i, dst) in dst.iter().enumerate() {
                    let at = at + i as u64 * u64::from(ty.width);
                    let value = if *shared {
                        self.shared_load(thread, at, ty.width)
                    } else {
                        // SAFETY: by `run`'s contract.
                        unsafe { self.memory.load(thread, (at, ty.width), *order, &mut self.rng) }
                    };
                    self.threads[thread].set(*dst, ty.extend(value));
                }
            }
            Op::Store { src, at, ty, order, shared } => {
                let at = self.address(thread, *at, ty.width as usize * src.len(), *shared, text)?;
                for (i, src) in src.iter().enumerate() {
                    let at = at + i as u64 * u64::from(ty.width);
                    let value = ty.mask(self.value(thread, *src));
                    if *shared {
                        self.shared_store(thread, at, value, ty.width);
                    } else {
                        // SAFETY: by `run`'s contract.
                        unsafe { self.memory.store(thread, at, value, ty.width, *order) };
                    }
                }
            }
            Op::Atomic { dst, at, ty, order, op, a, b } => {
                let at = self.address(thread, *at, usize::from(ty.width), false, text)?;
                let change = (*op, self.value(thread, *a), self.value(thread, *b));
                // SAFETY: by `run`'s contract; `address` has checked the alignment.
                let old = unsafe { self.memory.atomic(thread, (at, ty.width), *order, change) };
                if let Some(dst) = dst {
                    self.threads[thread].set(*dst, old);
                }
            }
            // SAFETY: by `run`'s contract.
            Op::Fence(order) => unsafe { self.memory.fence(thread, *order) },
            // SAFETY: by `run`'s contract.
            other => unsafe { self.bulk(thread, other, text)? },
        }
        Ok(())
    }

    fn address(
        &self,
        thread: usize,
        at: Address,
        bytes: usize,
        shared: bool,
        text: &str,
    ) -> Result<u64, ExecError> {
        let at = self.value(thread, at.base).wrapping_add(at.offset as u64);
        let inside = |at: u64| at.saturating_add(bytes as u64) <= self.shared_bytes();
        if at.is_multiple_of(bytes as u64) && if shared { inside(at) } else { at != 0 } {
            return Ok(at);
        }
        Err(ExecError::Access { at, text: text.to_owned() })
    }

    fn shared_bytes(&self) -> u64 {
        self.kernel.shared_bytes + u64::from(self.launch.shared_bytes)
    }

    fn shared_load(&self, thread: usize, at: u64, width: u8) -> u64 {
        let block = self.threads[thread].block;
        let mut value = [0; 8];
        let (at, width) = (at as usize, usize::from(width));
        value[..width].copy_from_slice(&self.memory.shared[block][at..at + width]);
        u64::from_le_bytes(value)
    }

    fn shared_store(&mut self, thread: usize, at: u64, value: u64, width: u8) {
        let block = self.threads[thread].block;
        let (at, width) = (at as usize, usize::from(width));
        let bytes = &mut self.memory.shared[block][at..at + width];
        bytes.copy_from_slice(&value.to_le_bytes()[..width]);
    }
}

mod bulk;
