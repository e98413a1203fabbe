//! The stand-in for the CUDA driver library (gpu/mock) as a file, for tests of several crates.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// Cargo builds no library for the tests of another package, so it is built here, into a folder of
/// its own beside what cargo built before, which takes no time if nothing has changed. In a guest
/// of `scripts/rdma-guest` it must have been built before.
pub fn library() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| {
        let program = std::env::current_exe().expect("the test's own path");
        // TARGET/debug/deps/driver-0123
        let target = program.ancestors().nth(3).expect("a target folder").join("mock-cuda");
        let built = target.join("debug/libnkv_mock_cuda.so");
        if std::env::var_os("NKV_IN_RDMA_GUEST").is_some() {
            assert!(
                built.exists(),
                "{} is not there: scripts/rdma-test builds it",
                built.display()
            );
            return built;
        }
        let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".to_string());
        let mut command = Command::new(cargo);
        command.args(["build", "--locked", "--quiet", "-p", "nkv-mock-cuda", "--target-dir"]);
        command.arg(&target).current_dir(env!("CARGO_MANIFEST_DIR"));
        let made = command.output().expect("cargo starts");
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        built
    })
}
