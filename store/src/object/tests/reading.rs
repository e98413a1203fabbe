//! What a reader may accept, condition by condition.

use super::*;

#[test]
fn i2_every_condition_alone_makes_an_object_unreadable() {
    let arena = Region { offset: 8192, len: 40_960 };
    let key = KEYS.id(b"k");
    let good = ObjHeader {
        key_hash: key.hash,
        key_check: key.check,
        payload_base: 8192,
        bytes_total: 100,
        publish: ready(7),
        owner: word(flag::LIVE, 7),
        ..ObjHeader::default()
    };
    let wanted = expect(key, 7, Extent { offset: 8192, len: 4096 });
    assert_eq!(validate(&good, &wanted, &arena), Ok(()));
    let beyond = arena.offset + arena.len;
    for (header, why) in [
        (ObjHeader { publish: writing(7), ..good }, Unreadable::NotReady),
        (ObjHeader { publish: reserved(7), ..good }, Unreadable::NotReady),
        (ObjHeader { publish: dead(7), ..good }, Unreadable::Gone),
        (ObjHeader { publish: word(9, 7), ..good }, Unreadable::Gone),
        (ObjHeader { publish: ready(8), ..good }, Unreadable::Gone),
        (ObjHeader { owner: word(flag::LIVE, 8), ..good }, Unreadable::Gone),
        (ObjHeader { owner: word(0, 7), ..good }, Unreadable::Gone),
        (ObjHeader { publish: ready(8), owner: word(1, 8), ..good }, Unreadable::Gone),
        (ObjHeader { key_hash: 0, ..good }, Unreadable::OtherKey),
        (ObjHeader { key_check: 0, ..good }, Unreadable::OtherKey),
        (ObjHeader { payload_base: 12_288, ..good }, Unreadable::BadExtent),
        (ObjHeader { bytes_total: 101, ..good }, Unreadable::BadExtent),
    ] {
        assert_eq!(validate(&header, &wanted, &arena), Err(why), "{header:?}");
    }
    for (payload_base, bytes_total) in
        [(4096, 100), (beyond - 50, 100), (u64::MAX, 100), (8192, u64::MAX)]
    {
        let header = ObjHeader { payload_base, bytes_total, ..good };
        let same = Expect { payload_base, bytes_total, ..wanted };
        assert_eq!(validate(&header, &same, &arena), Err(Unreadable::BadExtent));
    }
    let empty = ObjHeader { payload_base: beyond, bytes_total: 0, ..good };
    let at_the_end = Expect { payload_base: beyond, bytes_total: 0, ..wanted };
    assert_eq!(validate(&empty, &at_the_end, &arena), Ok(()), "no bytes lie nowhere");
}

#[test]
fn i7_only_the_access_time_may_change_under_a_reader() {
    let before = ObjHeader { publish: ready(1), last_access: 5, ..ObjHeader::default() };
    assert!(unchanged(&before, &ObjHeader { last_access: 6, ..before }));
    for after in [
        ObjHeader { key_hash: 1, ..before },
        ObjHeader { n_pages: 1, ..before },
        ObjHeader { page_size: 1, ..before },
        ObjHeader { payload_base: 1, ..before },
        ObjHeader { bytes_total: 1, ..before },
        ObjHeader { publish: ready(2), ..before },
        ObjHeader { owner: 1, ..before },
        ObjHeader { key_check: 1, ..before },
    ] {
        assert!(!unchanged(&before, &after), "{after:?}");
    }
}
