//! The configuration file: flat TOML whose keys are those of the table of settings. Only the TOML
//! type of a value is checked here.

use crate::node_settings::KEYS;
use std::collections::BTreeMap;
use std::io::Read;
use std::path::Path;

/// Largest file read.
const MAX_FILE_BYTES: u64 = 1 << 20;

/// The file's settings, as text by key.
pub(super) fn load(path: &Path) -> Result<BTreeMap<String, String>, String> {
    let named = |why: &dyn std::fmt::Display| format!("--config {}: {why}", path.display());
    let mut text = String::new();
    let file = std::fs::File::open(path).map_err(|e| named(&e))?;
    file.take(MAX_FILE_BYTES + 1).read_to_string(&mut text).map_err(|e| named(&e))?;
    if text.len() as u64 > MAX_FILE_BYTES {
        return Err(named(&format!("larger than {MAX_FILE_BYTES} bytes")));
    }
    parse(&text).map_err(|why| named(&why))
}

/// The settings of a file's text.
pub(super) fn parse(text: &str) -> Result<BTreeMap<String, String>, String> {
    let table: toml::Table = text.parse().map_err(|e: toml::de::Error| one_line(text, &e))?;
    let unknown: Vec<&str> =
        table.keys().filter(|key| !KEYS.contains(key)).map(String::as_str).collect();
    if !unknown.is_empty() {
        return Err(format!("unknown keys {}; known are {}", unknown.join(", "), KEYS.join(", ")));
    }
    table.into_iter().map(|(key, value)| as_text(&value).map(|text| (key, text))).collect()
}

fn as_text(value: &toml::Value) -> Result<String, String> {
    match value {
        toml::Value::String(text) => Ok(text.clone()),
        toml::Value::Integer(number) => Ok(number.to_string()),
        toml::Value::Boolean(on) => Ok(on.to_string()),
        other => Err(format!(
            "{other} is a {}: settings are texts, whole numbers, true or false",
            other.type_str()
        )),
    }
}

/// The parser's message in one line, with where it happened.
fn one_line(text: &str, error: &toml::de::Error) -> String {
    let at = error.span().map_or(0, |span| span.start.min(text.len()));
    let line = 1 + text.as_bytes()[..at].iter().filter(|&&c| c == b'\n').count();
    format!("line {line}: {}", error.message().replace('\n', " "))
}

#[cfg(test)]
mod tests {
    use super::parse;

    #[test]
    fn texts_numbers_and_switches_are_read() {
        let found = parse("heap_bytes = \"1GiB\"\nrank = 3\nprefault = false\n# a note\n").unwrap();
        let expected = [("heap_bytes", "1GiB"), ("prefault", "false"), ("rank", "3")];
        assert!(found.iter().map(|(k, v)| (k.as_str(), v.as_str())).eq(expected));
        assert!(parse("").unwrap().is_empty());
    }

    #[test]
    fn unknown_keys_are_refused_all_by_name() {
        let error = parse("rank = 0\nheap = 1\n[section]\nx = 1\n").unwrap_err();
        assert!(error.contains("unknown keys heap, section;"), "{error}");
        assert!(error.contains("heap_bytes"), "{error}");
    }

    #[test]
    fn what_is_no_setting_is_refused_in_one_line() {
        for text in ["rank = 1.5", "rank = [1]", "rank = {a = 1}", "rank = 1\nrank = 2", "rank ="] {
            let error = parse(text).unwrap_err();
            assert!(!error.contains('\n') && !error.is_empty(), "{error}");
        }
        assert!(parse("\n\nrank =").unwrap_err().starts_with("line 3"));
    }
}
