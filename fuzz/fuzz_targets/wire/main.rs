//! The fuzz target `wire`: the first byte of an input picks a decoder, the rest is what a peer
//! sends. A decoder may refuse anything; it may not panic, hang, hold more memory than its limits
//! allow, accept what it would not write itself, or affect any other connection [I19]. A decoder's
//! memory limit is checked after each input, and the heap of the whole process is capped in
//! [`heap`].
#![no_main]

mod address;
mod agent;
mod answers;
mod bodies;
mod feed;
mod handshake;
mod heap;
mod seeds;
mod stream;

use libfuzzer_sys::fuzz_target;

#[global_allocator]
static HEAP: heap::Counting = heap::Counting;

/// Set to a folder, the target writes its seeds there and ends.
const SEEDS_VARIABLE: &str = "NKV_FUZZ_SEEDS";

/// Consumes what a peer sent; true if all of it was understood.
type Decoder = fn(&[u8]) -> bool;

/// By first byte, modulo their number.
const DECODERS: [(&str, Decoder); 14] = [
    ("hello", bodies::hello),
    ("welcome", bodies::welcome),
    ("request", bodies::request),
    ("response", bodies::response),
    ("up", bodies::up),
    ("down", bodies::down),
    ("to-owner", bodies::to_owner),
    ("to-client", bodies::to_client),
    ("stream", stream::run),
    ("address", address::run),
    ("agent", agent::run),
    ("answers", answers::run),
    ("handshake", handshake::run),
    ("actors", nkv_actors::hostile::run),
];

fn run(input: &[u8]) -> bool {
    let Some((first, rest)) = input.split_first() else {
        return false;
    };
    let (_, decoder) = DECODERS[usize::from(*first) % DECODERS.len()];
    decoder(rest)
}

fuzz_target!(
    init: {
        if let Some(folder) = std::env::var_os(SEEDS_VARIABLE) {
            let n = seeds::write(std::path::Path::new(&folder));
            println!("{n} seeds written");
            std::process::exit(0);
        }
    },
    |input: &[u8]| {
        run(input);
    }
);
