//! Keys on the command line and in output: plain text unchanged, else in double quotes with
//! escapes, as redis-cli writes them. A printed key can be given as an argument again.

use nkv_store::Key;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

/// For `--help`.
pub(crate) const SYNTAX: &str = "\
Keys:
  A key is 1 to 1024 bytes of anything. It is taken, and printed, as it is where it is plain text.
  An argument that begins with a double quote is in escaped form, with these escapes:
    \\xHH            the byte with that number, two hexadecimal digits
    \\n \\r \\t \\a \\b  line feed, carriage return, tab, bell, backspace
    \\\\ \\\"           backslash, double quote
  So nkv get '\"\\x00\\xff\"' reads the key of the two bytes 0 and 255. If the rest is not well
  formed the command ends with 2. A backslash outside quotes is a backslash.
  Printed in escaped form are keys that are no UTF-8 or have characters that do not print, that
  begin with a double quote or -, or that begin or end with a blank. Every line of nkv ls can be
  given back as it stands, in single quotes for the shell.
  With --literal-keys every key is taken as it is typed: for scripts that pass on keys which they
  did not choose. A key that begins with - then needs -- before it.
  Patterns of ls and rm --matching are regular expressions over bytes: (?-u:\\xff) is a byte.";

/// A key as it is printed, and as [`parse`] takes it.
pub(crate) fn shown(key: &[u8]) -> String {
    match std::str::from_utf8(key) {
        Ok(text) if is_plain(text) => text.to_string(),
        _ => quoted(key),
    }
}

/// True if it is printable, and [`parse`] reads it as it is.
fn is_plain(text: &str) -> bool {
    let marked = text.starts_with(['"', '-']) || text.trim() != text;
    let safe = |c: char| if matches!(c, '"' | '\'' | '\\') { 'x' } else { c };
    let rest: String = text.chars().map(safe).collect();
    !marked && !text.is_empty() && rest.escape_debug().eq(rest.chars())
}

/// Bytes with an escape of one letter, and that letter.
const ESCAPES: [(u8, u8); 7] = [
    (b'"', b'"'),
    (b'\\', b'\\'),
    (b'\n', b'n'),
    (b'\r', b'r'),
    (b'\t', b't'),
    (0x07, b'a'),
    (0x08, b'b'),
];

fn quoted(key: &[u8]) -> String {
    let escaped = |byte: &u8| match ESCAPES.iter().find(|(escaped, _)| escaped == byte) {
        Some((_, letter)) => format!("\\{}", char::from(*letter)),
        None if matches!(byte, b' '..=b'~') => char::from(*byte).to_string(),
        None => format!("\\x{byte:02x}"),
    };
    format!("\"{}\"", key.iter().map(escaped).collect::<String>())
}

/// The key that an argument names.
///
/// # Errors
/// One sentence if it is no key, or its escaped form is wrong.
pub(crate) fn parse(argument: &OsStr, literal: bool) -> Result<Vec<u8>, String> {
    let bytes = argument.as_bytes();
    let key = match bytes.strip_prefix(b"\"") {
        Some(rest) if !literal => unquoted(rest).map_err(|why| {
            format!(
                "key {}: {why}; a key that begins with a double quote is in escaped form, such as \
                 \"a\\x00b\" (--literal-keys: as it is typed)",
                argument.to_string_lossy()
            )
        })?,
        _ => bytes.to_vec(),
    };
    Key::check(&key).map_err(|e| e.to_string())?;
    Ok(key)
}

/// The bytes of what follows the first quote.
fn unquoted(text: &[u8]) -> Result<Vec<u8>, String> {
    let mut key = Vec::with_capacity(text.len());
    let mut rest = text.iter().copied();
    loop {
        let byte = rest.next().ok_or("no double quote ends it")?;
        match byte {
            b'"' if rest.len() == 0 => return Ok(key),
            b'"' => return Err("something follows the double quote that ends it".to_string()),
            b'\\' => key.push(escape(&mut rest)?),
            plain => key.push(plain),
        }
    }
}

/// The byte that an escape stands for.
fn escape(rest: &mut impl Iterator<Item = u8>) -> Result<u8, String> {
    let kind = rest.next().ok_or("a backslash ends it")?;
    if kind == b'x' {
        let mut digit = || {
            let digit = rest.next().and_then(|d| char::from(d).to_digit(16));
            digit.ok_or("\\x wants two hexadecimal digits")
        };
        return Ok((digit()? * 16 + digit()?) as u8);
    }
    let byte = ESCAPES.iter().find(|(_, letter)| *letter == kind).map(|(byte, _)| *byte);
    byte.ok_or_else(|| format!("\\{} is no escape", char::from(kind).escape_default()))
}

#[cfg(test)]
mod tests {
    use super::{parse, shown};
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt;

    fn read(text: &str) -> Result<Vec<u8>, String> {
        parse(OsStr::new(text), false)
    }

    #[test]
    fn plain_keys_are_as_they_are_both_ways() {
        for key in
            ["a", "run-1/42", "a b", "a\\b", "a\\x00", "it's", "a\"b\"", "ü/\u{4e2d}", "e\u{301}"]
        {
            assert_eq!(shown(key.as_bytes()), key);
            assert_eq!(read(key).unwrap(), key.as_bytes());
        }
    }

    #[test]
    fn what_would_be_misread_or_unseen_is_escaped() {
        for (key, text) in [
            (&b"\xff\n"[..], r#""\xff\n""#),
            (b"\x00", r#""\x00""#),
            (b"\"", r#""\"""#),
            (b"\"a\"", r#""\"a\"""#),
            (b"\\\x07\x08\r\t", r#""\\\a\b\r\t""#),
            (b" a", r#"" a""#),
            (b"a ", r#""a ""#),
            (b"-x", r#""-x""#),
            ("\u{202e}a".as_bytes(), r#""\xe2\x80\xaea""#),
            ("a\u{a0}".as_bytes(), r#""a\xc2\xa0""#),
            ("\u{301}".as_bytes(), r#""\xcc\x81""#),
            ("ü\0".as_bytes(), r#""\xc3\xbc\x00""#),
        ] {
            assert_eq!(shown(key), text);
            assert_eq!(read(text).unwrap(), key);
        }
    }

    #[test]
    fn every_key_that_is_printed_can_be_given_back() {
        let mut keys: Vec<Vec<u8>> = (0..=255u8).map(|b| vec![b]).collect();
        let edges = [0, b' ', b'"', b'\\', b'-', b'n', b'x', 0x7f, 0x80, 0xc3, 0xff];
        for a in edges {
            for b in 0..=255u8 {
                keys.extend([vec![a, b], vec![b, a], vec![a, b, a]]);
            }
        }
        for key in keys {
            let text = shown(&key);
            assert_eq!(read(&text), Ok(key.clone()), "{text}");
            // Else it would be taken for an option, or misread on the screen.
            assert!(!text.starts_with('-') && !text.chars().any(char::is_control), "{text}");
        }
    }

    #[test]
    fn an_escaped_form_that_is_wrong_is_refused_with_the_syntax() {
        for text in ["\"", "\"a", "\"a\"b", "\"a\\\"", r#""\q""#, r#""\x0""#, r#""\x0g""#, "\"\\"] {
            let error = read(text).expect_err(text);
            assert!(error.contains("--literal-keys"), "{error}");
            assert_eq!(parse(OsStr::new(text), true).unwrap(), text.as_bytes());
        }
        assert_eq!(read(r#""ü\x41""#).unwrap(), "üA".as_bytes());
        assert_eq!(parse(OsStr::from_bytes(b"\"\xff\""), false).unwrap(), b"\xff");
    }

    #[test]
    fn no_key_has_0_bytes_or_1025() {
        assert!(read("").is_err() && read("\"\"").is_err());
        assert_eq!(read(&"k".repeat(1024)).unwrap().len(), 1024);
        assert!(read(&"k".repeat(1025)).unwrap_err().contains("1025"));
        let escaped = format!("\"{}\"", r"\x00".repeat(1024));
        assert_eq!(read(&escaped).unwrap(), [0; 1024]);
    }
}
