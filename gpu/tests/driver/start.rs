//! Starts this program as a task, with the library that it is to load.

use crate::mock_library::library;
use std::collections::BTreeMap;
use std::process::{Command, Output};
use tempfile::TempDir;

/// Environment variable with the task's name.
pub const TASK: &str = "NKV_GPU_TEST_TASK";

/// If it is "system", tasks load this machine's own driver library.
const LIBRARY: &str = "NKV_GPU_TEST_LIBRARY";

/// Whether tasks run on a GPU, and not with the stand-in.
pub fn on_a_gpu() -> bool {
    std::env::var(LIBRARY).is_ok_and(|which| which == "system")
}

/// A task, its environment, and a folder for its library and files.
pub struct Start {
    folder: TempDir,
    command: Command,
}

/// What a task left.
pub struct Ended {
    /// It ended with status 0.
    pub good: bool,
    /// Both of its streams.
    pub text: String,
    /// The driver's calls, in order.
    pub calls: Vec<String>,
    /// What was not given back, by kind. Empty if the driver was never initialised.
    pub left: BTreeMap<String, u64>,
}

impl Ended {
    /// The task succeeded, and gave everything back.
    #[track_caller]
    pub fn good(self) -> Self {
        assert!(self.good, "{}", self.text);
        assert_eq!(self.left_in_all(), 0, "{:?}", self.left);
        self
    }

    /// The task failed with a text that contains each of these.
    #[track_caller]
    pub fn failed_with(self, parts: &[&str]) -> Self {
        assert!(!self.good, "{}", self.text);
        for part in parts {
            assert!(self.text.contains(part), "no {part:?} in: {}", self.text);
        }
        assert!(!self.text.contains("panicked"), "{}", self.text);
        assert_eq!(self.left_in_all(), 0, "{:?}", self.left);
        self
    }

    /// Things of all kinds.
    pub fn left_in_all(&self) -> u64 {
        self.left.values().sum()
    }
}

impl Start {
    /// With the stand-in as the driver library, or this machine's own.
    pub fn task(name: &str) -> Self {
        let start = Self::without_library(name);
        if on_a_gpu() {
            let Self { folder, mut command } = start;
            command.env_remove("LD_LIBRARY_PATH");
            if let Some(path) = std::env::var_os("LD_LIBRARY_PATH") {
                command.env("LD_LIBRARY_PATH", path);
            }
            return Self { folder, command };
        }
        for file in ["libcuda.so", "libcuda.so.1"] {
            std::fs::copy(library(), start.folder.path().join(file)).unwrap();
        }
        start
    }

    /// With an empty folder where libraries are looked for first.
    pub fn without_library(name: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.env(TASK, name).env("LD_LIBRARY_PATH", folder.path());
        for file in ["MOCK_CUDA_LOG", "MOCK_CUDA_LEAKS"] {
            command.env(file, folder.path().join(file));
        }
        Self { folder, command }
    }

    /// With a variable.
    pub fn env(mut self, name: &str, value: &str) -> Self {
        self.command.env(name, value);
        self
    }

    /// With these bytes as the library.
    pub fn library(self, bytes: &[u8]) -> Self {
        for file in ["libcuda.so", "libcuda.so.1"] {
            std::fs::write(self.folder.path().join(file), bytes).unwrap();
        }
        self
    }

    /// With a library that lacks a symbol: its name is changed in the file.
    pub fn without_symbol(self, symbol: &str) -> Self {
        let name = format!("\0{symbol}\0").into_bytes();
        let mut bytes = std::fs::read(library()).unwrap();
        let found: Vec<usize> =
            (0..bytes.len() - name.len()).filter(|at| bytes[*at..].starts_with(&name)).collect();
        assert!(!found.is_empty(), "{symbol} is no symbol of the library");
        found.iter().for_each(|at| bytes[at + 1] = b'_');
        self.library(&bytes)
    }

    /// Runs it to its end.
    pub fn run(mut self) -> Ended {
        let Output { status, stdout, stderr } = self.command.output().unwrap();
        let read = |name| std::fs::read_to_string(self.folder.path().join(name)).ok();
        let left = read("MOCK_CUDA_LEAKS").unwrap_or_default();
        let left = left.lines().filter_map(|line| line.split_once(' '));
        Ended {
            good: status.success(),
            text: format!(
                "{}{}",
                String::from_utf8_lossy(&stdout),
                String::from_utf8_lossy(&stderr)
            ),
            calls: read("MOCK_CUDA_LOG").unwrap_or_default().lines().map(String::from).collect(),
            left: left.map(|(kind, n)| (kind.to_string(), n.parse().unwrap())).collect(),
        }
    }
}
