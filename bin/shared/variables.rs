//! The variables that nkv's programs read. A variable with their prefix that is not among them is
//! probably misspelled, so the programs warn of it. All programs share this list; each includes it
//! by path.

use crate::node_settings::{KEYS, variable};

/// Prefix of every variable.
const PREFIX: &str = "NKV_";
/// Largest edit distance, in letters, at which a known name is suggested.
const FARTHEST: usize = 2;
/// Names of unknown variables that are printed.
const TOLD: usize = 8;

/// Those that are no setting of a node.
const OTHERS: [&str; 8] = [
    // Set by build.rs: cargo also sets them for programs that it runs.
    "NKV_BUILD_COMMIT",
    "NKV_BUILD_VERSION",
    "NKV_COMMIT",
    "NKV_CONFIG",
    "NKV_CONNECT",
    "NKV_SECRET",
    "NKV_TEST_RDMA",
    "NKV_IN_RDMA_GUEST",
];

/// All of them.
fn known() -> impl Iterator<Item = String> {
    KEYS.iter().map(|key| variable(key)).chain(OTHERS.map(str::to_string))
}

/// One line for each unknown name, with the known name that is meant if one is near; at most
/// eight lines.
pub fn unknown<'a>(names: impl Iterator<Item = &'a str>) -> Vec<String> {
    let ours = names.filter(|name| name.starts_with(PREFIX) && known().all(|known| known != *name));
    let line = |name: &str| {
        let near = known().map(|known| (strsim::levenshtein(name, &known), known)).min();
        let meant = near.filter(|(far, _)| *far <= FARTHEST);
        let meant = meant.map_or_else(String::new, |(_, known)| format!(": is {known} meant?"));
        format!("the variable {} is read by no program of nkv{meant}", name.escape_debug())
    };
    ours.take(TOLD).map(line).collect()
}

/// The same for this process's environment.
pub fn unknown_here() -> Vec<String> {
    let names: Vec<String> =
        std::env::vars_os().filter_map(|(k, _)| k.into_string().ok()).collect();
    unknown(names.iter().map(String::as_str))
}

#[cfg(test)]
mod tests {
    use super::{known, unknown};

    #[test]
    fn an_unknown_variable_is_reported_with_the_nearest_known_one() {
        let known: Vec<String> = known().collect();
        assert!(known.len() > 40 && known.contains(&"NKV_HEAP_BYTES".to_string()), "{known:?}");
        assert!(unknown(known.iter().map(String::as_str)).is_empty());
        assert!(unknown(["PATH", "NKVX"].into_iter()).is_empty());
        let text = unknown(["NKV_CONECT", "NKV_HEAP_BYTE", "NKV_FROBNICATOR"].into_iter());
        assert!(
            text[0].ends_with("NKV_CONECT is read by no program of nkv: is NKV_CONNECT meant?")
        );
        assert!(text[1].ends_with("is NKV_HEAP_BYTES meant?"), "{text:?}");
        assert!(text[2].ends_with("NKV_FROBNICATOR is read by no program of nkv"), "{text:?}");
        assert_eq!(unknown(std::iter::repeat_n("NKV_X", 100)).len(), super::TOLD);
    }
}
