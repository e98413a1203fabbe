//! Random calls: both engines do what a map would do.

use crate::disk::Ram;
use crate::scene::{Clock, KINDS, Segment, content, is_saved, key};
use nkv_ssd::Durability;
use nkv_ssd::{LoadError, Saved};
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::sync::Arc;

#[derive(Debug, Clone)]
enum Call {
    Save(u8, u32),
    Load(u8),
    Remove(Vec<u8>),
    Maintain,
    StartAgain,
}

fn call() -> impl Strategy<Value = Call> {
    prop_oneof![
        6 => (0u8..12, 0u32..40_000).prop_map(|(key, len)| Call::Save(key, len)),
        4 => (0u8..12).prop_map(Call::Load),
        2 => prop::collection::vec(0u8..12, 1..4).prop_map(Call::Remove),
        1 => Just(Call::Maintain),
        1 => Just(Call::StartAgain),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]
    #[test]
    fn engines_are_maps(calls in prop::collection::vec(call(), 1..60)) {
        for kind in KINDS {
            let (ram, clock, segment) = (Ram::new(), Clock::new(), Segment::new(1 << 20));
            let open = || kind.open(Arc::new(ram.clone()), &clock, 8, Durability::Persistent);
            let mut engine = open().unwrap();
            let mut model: BTreeMap<u8, Vec<u8>> = BTreeMap::new();
            for (version, call) in calls.iter().enumerate() {
                match call {
                    Call::Save(number, len) => {
                        let name = key(&number.to_string());
                        let bytes = content(&name, version as u64, u64::from(*len));
                        let saved = segment.save(&*engine, &name, &bytes);
                        match model.get(number) {
                            None => {
                                prop_assert!(is_saved(&saved), "{:?}", saved);
                                model.insert(*number, bytes);
                            }
                            Some(old) if old.len() == bytes.len() => {
                                prop_assert!(matches!(saved, Saved::Dedup));
                            }
                            Some(_) => {
                                prop_assert!(matches!(saved, Saved::Collision));
                                model.remove(number);
                                clock.advance_s(3600);
                            }
                        }
                    }
                    Call::Load(number) => {
                        let name = key(&number.to_string());
                        match (segment.load(&*engine, &name), model.get(number)) {
                            (Ok(read), Some(bytes)) => prop_assert!(read == *bytes),
                            (Err(LoadError::NotFound), None) => {}
                            other => prop_assert!(false, "{:?}", other.0),
                        }
                    }
                    Call::Remove(numbers) => {
                        let names: Vec<_> = numbers.iter().map(|n| key(&n.to_string())).collect();
                        let before = model.len();
                        numbers.iter().for_each(|number| drop(model.remove(number)));
                        let removed = engine.remove(&names.iter().collect::<Vec<_>>()).unwrap();
                        prop_assert_eq!(removed as usize, before - model.len());
                    }
                    Call::Maintain => engine.maintain().unwrap(),
                    Call::StartAgain => {
                        drop(engine);
                        engine = open().unwrap();
                    }
                }
                prop_assert_eq!(engine.stats().objects as usize, model.len());
            }
            prop_assert_eq!(engine.validate().unwrap().missing_cleaned, 0);
        }
    }
}
