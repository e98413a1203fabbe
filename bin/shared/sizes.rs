//! Reads and writes byte counts such as `4096`, `64KiB`, `1.5GiB`. All programs share this file, so
//! that they take the same spellings; each includes it by path. Powers of 1024 only: a bare `K` or
//! `MB` is refused, because it is ambiguous.

/// The suffixes taken, largest first, with their factors.
const UNITS: [(&str, u64); 4] =
    [("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)];

/// Bytes of a text like `4096`, `4096B`, `64KiB`, `64 MiB` or `1.5GiB`. Case does not matter.
///
/// # Errors
/// One sentence that names the text and what is accepted.
pub fn parse_bytes(text: &str) -> Result<u64, String> {
    let trimmed = text.trim();
    let digits = trimmed.find(|c: char| !(c.is_ascii_digit() || c == '.')).unwrap_or(trimmed.len());
    let (number, suffix) = (&trimmed[..digits], trimmed[digits..].trim_start());
    if number.is_empty() {
        return Err(format!(
            "{text:?} is not a size: write a number of bytes or a number with KiB, MiB, GiB or \
             TiB, such as 64MiB"
        ));
    }
    let factor = factor_of(suffix).ok_or_else(|| {
        format!("{text:?} has the unknown suffix {suffix:?}: KiB, MiB, GiB and TiB are taken")
    })?;
    scaled(number, factor).ok_or_else(|| {
        format!("{text:?} is not a whole number of bytes between 0 and {}", u64::MAX)
    })
}

/// The same, from 1 to `most`.
///
/// # Errors
/// The same, and one sentence that names the range.
pub fn bytes_up_to(text: &str, most: u64) -> Result<u64, String> {
    match parse_bytes(text)? {
        bytes if (1..=most).contains(&bytes) => Ok(bytes),
        bytes => Err(format!("{bytes} bytes: 1 to {most} are taken")),
    }
}

fn factor_of(suffix: &str) -> Option<u64> {
    if suffix.is_empty() || suffix.eq_ignore_ascii_case("B") {
        return Some(1);
    }
    UNITS.iter().find(|(unit, _)| unit.eq_ignore_ascii_case(suffix)).map(|(_, factor)| *factor)
}

/// `number * factor` with a decimal point allowed as long as the product is whole; no rounding is
/// done silently.
fn scaled(number: &str, factor: u64) -> Option<u64> {
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    let whole: u64 = whole.parse().ok()?;
    let mut bytes = u128::from(whole) * u128::from(factor);
    if !fraction.is_empty() {
        let places = u32::try_from(fraction.len()).ok()?;
        let parts: u64 = fraction.parse().ok()?;
        let denominator = 10u128.checked_pow(places)?;
        let numerator = u128::from(parts) * u128::from(factor);
        if numerator % denominator != 0 {
            return None;
        }
        bytes += numerator / denominator;
    } else if number.contains('.') {
        return None;
    }
    u64::try_from(bytes).ok()
}

/// The shortest spelling of `bytes`: exact with the largest suffix that divides it, else one
/// decimal of the largest below it.
pub fn show_bytes(bytes: u64) -> String {
    for (unit, factor) in UNITS {
        if bytes >= factor {
            #[expect(clippy::cast_precision_loss, reason = "one decimal is shown")]
            return if bytes.is_multiple_of(factor) {
                format!("{} {unit}", bytes / factor)
            } else {
                format!("{:.1} {unit}", bytes as f64 / factor as f64)
            };
        }
    }
    format!("{bytes} B")
}

#[cfg(test)]
mod tests {
    use super::{parse_bytes, show_bytes};

    #[test]
    fn bare_numbers_are_bytes_and_suffixes_are_powers_of_1024() {
        for (text, bytes) in [
            ("0", 0),
            ("4096", 4096),
            ("17B", 17),
            ("64KiB", 64 << 10),
            ("64 kib", 64 << 10),
            (" 16MiB ", 16 << 20),
            ("1.5GiB", 3 << 29),
            ("2TiB", 2 << 40),
        ] {
            assert_eq!(parse_bytes(text), Ok(bytes), "{text}");
        }
    }

    #[test]
    fn what_readers_would_disagree_about_is_refused_with_a_remedy() {
        for text in ["64K", "64KB", "64MB", "GiB", "", "-1", "1e9", "0x10"] {
            let error = parse_bytes(text).expect_err(text);
            assert!(error.contains("KiB, MiB, GiB"), "{error}");
        }
    }

    #[test]
    fn a_size_that_is_not_whole_or_does_not_fit_is_refused() {
        for text in ["0.3KiB", "1.5", "1.", "1.2.3KiB", "99999999999999999999", "99999999TiB"] {
            assert!(parse_bytes(text).is_err(), "{text}");
        }
    }

    #[test]
    fn sizes_are_shown_short() {
        assert_eq!(show_bytes(0), "0 B");
        assert_eq!(show_bytes(1023), "1023 B");
        assert_eq!(show_bytes(256 << 10), "256 KiB");
        assert_eq!(show_bytes(3 << 29), "1.5 GiB");
        assert_eq!(show_bytes(16 << 20), "16 MiB");
    }
}
