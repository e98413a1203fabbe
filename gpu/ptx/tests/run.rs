//! What the interpreter runs, and what it refuses.
#![expect(unsafe_code, reason = "kernels are run over this test's memory")]

use nkv_ptx::{ExecError, Execution, Launch, Module, ParseError, run};

/// Adds `add` to each word of an array of `n`, with a barrier between.
const ADD: &str = "
.version 8.0
.target sm_80
.address_size 64
.visible .entry add(
    .param .u64 add_param_0,
    .param .u32 add_param_1,
    .param .u32 add_param_2
)
{
    .reg .pred %p<2>;
    .reg .b32 %r<6>;
    .reg .b64 %rd<4>;
    ld.param.u64 %rd1, [add_param_0];
    ld.param.u32 %r1, [add_param_1];
    ld.param.u32 %r2, [add_param_2];
    mov.u32 %r3, %tid.x;
$L__next:
    setp.ge.u32 %p1, %r3, %r1;
    @%p1 bra $L__end;
    mul.wide.u32 %rd2, %r3, 4;
    add.s64 %rd3, %rd1, %rd2;
    ld.global.u32 %r4, [%rd3];
    add.s32 %r4, %r4, %r2;
    st.global.u32 [%rd3], %r4;
    mov.u32 %r5, %ntid.x;
    add.s32 %r3, %r3, %r5;
    bra.uni $L__next;
$L__end:
    bar.sync 0;
    ret;
}
";

fn launch(words: &mut [u32], add: u64) -> Launch {
    let args = vec![words.as_mut_ptr() as u64, words.len() as u64, add];
    Launch { block: 8, args, ..Launch::default() }
}

#[test]
fn a_kernel_changes_the_memory_that_it_was_given() {
    let module = Module::parse(ADD).unwrap();
    let kernel = module.kernel("add").unwrap();
    assert_eq!(kernel.params().iter().map(|p| p.width).collect::<Vec<_>>(), [8, 4, 4]);
    for seed in 1..50 {
        let mut words: Vec<u32> = (0..100).collect();
        let launch = Launch { seed, ..launch(&mut words, 7) };
        // SAFETY: the kernel accesses `words` only.
        let stats = unsafe { run(kernel, &launch) }.unwrap();
        assert!(stats.instructions > 100 * 8);
        assert_eq!(words, (7..107).collect::<Vec<u32>>());
    }
}

#[test]
fn one_seed_is_one_schedule() {
    let module = Module::parse(ADD).unwrap();
    let kernel = module.kernel("add").unwrap();
    let mut words = vec![0; 64];
    let mut traces = Vec::new();
    for _ in 0..2 {
        let mut execution = Execution::new(kernel, &launch(&mut words, 1)).unwrap();
        let mut trace = Vec::new();
        // SAFETY: the kernel accesses `words` only.
        while unsafe { execution.step() }.unwrap() {
            trace.push(execution.stats().instructions);
        }
        traces.push(trace);
    }
    assert_eq!(traces[0], traces[1]);
}

#[test]
fn what_it_cannot_run_is_an_error() {
    let parse = |text: &str| Module::parse(text).map(|_| ()).unwrap_err();
    assert_eq!(parse(".version 8.0"), ParseError::Empty);
    assert_eq!(parse(".entry f("), ParseError::Incomplete("f".to_owned()));
    assert_eq!(parse(".entry f() { ret;"), ParseError::Incomplete("f".to_owned()));
    let unknown = ParseError::Unknown("tensor.op %r1".to_owned());
    assert_eq!(parse(".entry f() { tensor.op %r1; }"), unknown);
    assert_eq!(parse(".entry f() { bra $x; }"), ParseError::Label("$x".to_owned()));

    let module = Module::parse(ADD).unwrap();
    let kernel = module.kernel("add").unwrap();
    let mut words = vec![0; 64];
    let good = launch(&mut words, 1);
    let fails = |launch: Launch| {
        // SAFETY: none of these launches accesses memory other than `words`.
        unsafe { run(kernel, &launch) }.unwrap_err()
    };
    let few = Launch { args: vec![1], ..good.clone() };
    assert_eq!(fails(few), ExecError::Arguments { given: 1, wanted: 3 });
    let none = Launch { grid: 0, ..good.clone() };
    assert_eq!(fails(none), ExecError::Shape { grid: 0, block: 8 });
    let huge = Launch { grid: u32::MAX, ..good.clone() };
    assert!(matches!(fails(huge), ExecError::Shape { .. }));
    let short = Launch { max_instructions: 50, ..good.clone() };
    assert_eq!(fails(short), ExecError::TooLong(50));
    let wide = Launch { shared_bytes: u32::MAX, ..good.clone() };
    assert_eq!(fails(wide), ExecError::Shared(u32::MAX));
    let odd = Launch { args: vec![2, 1, 1], ..good.clone() };
    assert!(matches!(fails(odd), ExecError::Access { at: 2, .. }));
    let null = Launch { args: vec![0, 1, 1], ..good };
    assert!(matches!(fails(null), ExecError::Access { at: 0, .. }));
}

#[test]
fn damaged_text_is_an_error_or_a_kernel() {
    for i in 0..ADD.len() {
        let _ = Module::parse(&ADD[..i]);
        let _ = Module::parse(&ADD[i..]);
        for other in ["", "}", "{", ";", "%", "[", "$", ".", "@", ",", "\u{e9}"] {
            let _ = Module::parse(&[&ADD[..i], other, &ADD[i + 1..]].concat());
        }
    }
    let large = ".entry f() { .shared .align 8 .b64 x[99999999999999999]; ret; }";
    assert!(matches!(Module::parse(large), Err(ParseError::Unknown(_))));
}

/// What Triton's kernels use beside the others: a parameter with a sign, the largest of all
/// threads' numbers, and dimensions that a launch here does not have.
const LARGEST: &str = "
.visible .entry largest(
    .param .u64 .ptr .global .align 1 largest_param_0,
    .param .u32 largest_param_1
)
.reqntid 8
{
    ld.param.b64 %rd1, [largest_param_0];
    ld.param.s32 %rd2, [largest_param_1];
    mov.u32 %r1, %tid.x;
    mov.u32 %r2, %nctaid.y;
    mad.lo.s32 %r1, %r1, %r2, %ctaid.z;
    cvt.s64.s32 %rd3, %r1;
    add.s64 %rd3, %rd3, %rd2;
    // begin inline asm
    @%p1 bra $L__end;
    atom.global.gpu.relaxed.max.s64 %rd4, [ %rd1 + 0 ], %rd3;
    atom.global.gpu.relaxed.max.u64 %rd4, [ %rd1 + 8 ], %rd3;
    cvt.u32.u64 %r3, %rd3;
    atom.global.gpu.relaxed.max.s32 %r4, [ %rd1 + 16 ], %r3;
    atom.global.gpu.relaxed.max.u32 %r4, [ %rd1 + 20 ], %r3;
    // end inline asm
$L__end:
    ret;
}
";

#[test]
fn the_largest_of_all_threads_is_kept() {
    let module = Module::parse(LARGEST).unwrap();
    let kernel = module.kernel("largest").unwrap();
    for seed in 1..20 {
        let mut words = [(-9i64) as u64, 0, 0xFFFF_FFF7];
        // The numbers are -5 to 2: as ones without a sign, -1 is the largest.
        let args = vec![words.as_mut_ptr() as u64, (-5i32) as u32 as u64];
        let launch = Launch { block: 8, args, seed, ..Launch::default() };
        // SAFETY: the kernel accesses `words` only.
        unsafe { run(kernel, &launch) }.unwrap();
        assert_eq!(words, [2, u64::MAX, 0xFFFF_FFFF_0000_0002]);
    }
}
