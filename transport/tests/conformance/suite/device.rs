//! Buffers of the caller that no load can read, as in VRAM.

use super::{bytes_at, pattern};
use crate::fixtures::{Fixture, SEGMENT_BYTES, TOKEN};
use nkv_store::testkit::Unaddressable;
use nkv_store::{AnonMemory, Memory};
use nkv_transport::verbs::{DeviceBuffer, NoObserver, Post};
use nkv_transport::{Op, TransportError};

/// Longer than the pieces in which they go through host memory, and not a multiple of them.
const LEN: usize = (1 << 20) + 4097;

fn device(content: &[u8]) -> Unaddressable {
    let memory = AnonMemory::new(2 * LEN as u64).unwrap();
    memory.write(0, content).unwrap();
    Unaddressable(memory)
}

fn buffer(device: &Unaddressable, offset: usize, len: usize) -> DeviceBuffer<'_> {
    DeviceBuffer::new(device, offset as u64, len).unwrap()
}

pub fn buffers_of_a_device_are_read_and_filled_in_order(f: Fixture) {
    let (first, second) = (pattern(1, LEN), pattern(2, 77));
    let device = device(&[&first[..], &second].concat());
    let mut before = [9; 8];
    let mut ops = [
        Op::Read { offset: 4099, dst: &mut before },
        Op::WriteFromDevice { offset: 4099, src: buffer(&device, 0, LEN) },
        Op::FetchAdd { offset: 8, add: 3, old: 9 },
        Op::ReadToDevice { offset: 4099, dst: buffer(&device, LEN + 77, 1001) },
        Op::WriteFromDevice { offset: 4100, src: buffer(&device, LEN, 77) },
        Op::Flush,
        Op::CompareSwap { offset: 8, expect: 3, new: 4, old: 9 },
        Op::ReadToDevice { offset: 4099, dst: buffer(&device, LEN + 77 + 1001, 99) },
    ];
    f.verbs.post(TOKEN, &mut ops).unwrap();
    assert_eq!([ops[2].result(), ops[6].result()], [Some(0), Some(3)]);
    assert_eq!((before, f.memory.load(8).unwrap()), ([0; 8], 4));
    let mut whole = first.clone();
    whole[1..78].copy_from_slice(&second);
    assert!(bytes_at(&*f.memory, 4099, LEN) == whole);
    assert_eq!(bytes_at(&*f.memory, 4099 + LEN as u64, 8), [0; 8]);
    assert!(bytes_at(&device, LEN as u64 + 77, 1001) == first[..1001]);
    assert!(bytes_at(&device, LEN as u64 + 77 + 1001, 99) == whole[..99]);
    assert_eq!(bytes_at(&device, LEN as u64 + 77 + 1100, 8), [0; 8]);
}

pub fn batches_with_buffers_of_a_device_end_each_for_itself(f: Fixture) {
    let content = pattern(3, 4096);
    let device = device(&content);
    let write = |offset| [Op::WriteFromDevice { offset, src: buffer(&device, 0, 4096) }];
    let (mut first, mut outside, mut last) =
        (write(4096), write(SEGMENT_BYTES - 4095), write(3 * 4096));
    let mut host = [Op::Write { offset: 2 * 4096, src: &content }];
    let mut posts = [
        Post { token: TOKEN, ops: &mut first },
        Post { token: TOKEN, ops: &mut host },
        Post { token: TOKEN, ops: &mut outside },
        Post { token: 0, ops: &mut last },
    ];
    let ended = f.verbs.post_many(&mut posts, &mut NoObserver);
    assert!(ended[0].is_ok() && ended[1].is_ok(), "{ended:?}");
    assert!(matches!(ended[2], Err(TransportError::OutOfBounds(_))), "{ended:?}");
    assert!(matches!(ended[3], Err(TransportError::Refused(_))), "{ended:?}");
    assert!(bytes_at(&*f.memory, 4096, 8192) == [&content[..], &content].concat());
    assert_eq!(bytes_at(&*f.memory, 3 * 4096, 64), [0; 64]);
}
