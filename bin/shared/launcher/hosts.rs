//! Slurm's compressed host lists, such as `n[01-03,07],m5`: the first host and the number of hosts.
//! A list is never expanded, since a short text may name very many hosts.

/// Longest list read, in bytes.
const MAX_LIST_BYTES: usize = 64 * 1024;
/// Most digits of a number in a list.
const MAX_DIGITS: usize = 18;

/// A parsed list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct HostList {
    /// The first host.
    pub(super) first: String,
    /// How many there are, at least 1.
    pub(super) count: u64,
}

impl std::str::FromStr for HostList {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text.len() > MAX_LIST_BYTES {
            return Err(format!("a list of hosts longer than {MAX_LIST_BYTES} bytes"));
        }
        let mut all: Option<HostList> = None;
        for part in split_outside_brackets(text)? {
            let part = expand(part.trim())?;
            match &mut all {
                None => all = Some(part),
                Some(list) => list.count = list.count.saturating_add(part.count),
            }
        }
        all.ok_or_else(|| "a list of hosts is expected, such as n[01-03],m5".to_string())
    }
}

/// The parts between commas that are not within brackets.
fn split_outside_brackets(text: &str) -> Result<Vec<&str>, String> {
    let (mut parts, mut start, mut inside) = (Vec::new(), 0, false);
    for (at, c) in text.char_indices() {
        match c {
            '[' if inside => return Err("a '[' within brackets".to_string()),
            '[' => inside = true,
            ']' if !inside => return Err("a ']' without its '['".to_string()),
            ']' => inside = false,
            ',' if !inside => {
                parts.push(&text[start..at]);
                start = at + 1;
            }
            _ => {}
        }
    }
    if inside {
        return Err("a '[' without its ']'".to_string());
    }
    parts.push(&text[start..]);
    Ok(parts)
}

/// One part: text with any number of bracketed ranges, such as `rack[1-2]node[01-16]`.
fn expand(part: &str) -> Result<HostList, String> {
    let (mut first, mut count, mut rest) = (String::new(), 1u64, part);
    while let Some((before, after)) = rest.split_once('[') {
        let (ranges, after) = after.split_once(']').ok_or("a '[' without its ']'")?;
        let (one, many) = bracket(ranges)?;
        first.push_str(before);
        first.push_str(&one);
        count = count.saturating_mul(many);
        rest = after;
    }
    first.push_str(rest);
    if first.is_empty() || first.contains(char::is_whitespace) {
        return Err("a host without a name".to_string());
    }
    Ok(HostList { first, count })
}

/// The inside of brackets, such as `01-03,07`: the first number as written (leading zeros are part
/// of the name) and how many numbers there are.
fn bracket(ranges: &str) -> Result<(String, u64), String> {
    let (mut first, mut count) = (None, 0u64);
    for range in ranges.split(',') {
        let (low, high) = range.split_once('-').unwrap_or((range, range));
        let (from, to) = (digits(low)?, digits(high)?);
        if from > to {
            return Err(format!("the range {range} runs backwards"));
        }
        count = count.saturating_add(to - from).saturating_add(1);
        first.get_or_insert_with(|| low.to_string());
    }
    first.map(|first| (first, count)).ok_or_else(|| "empty brackets".to_string())
}

fn digits(text: &str) -> Result<u64, String> {
    let plain =
        !text.is_empty() && text.len() <= MAX_DIGITS && text.bytes().all(|c| c.is_ascii_digit());
    let number = if plain { text.parse().ok() } else { None };
    number.ok_or_else(|| format!("\"{}\" in brackets is no number", text.escape_debug()))
}

#[cfg(test)]
mod tests {
    use super::{HostList, MAX_LIST_BYTES};

    #[test]
    fn the_first_host_and_the_number_of_hosts_follow_from_a_compressed_list() {
        for (text, first, count) in [
            ("n1", "n1", 1),
            ("node.example", "node.example", 1),
            ("n1,n2", "n1", 2),
            ("n[01-03,07],m5", "n01", 5),
            ("m5,n[01-03,07]", "m5", 5),
            ("n[1-3]", "n1", 3),
            ("n[09-11]", "n09", 3),
            ("n[0098-0102]", "n0098", 5),
            ("n[7]", "n7", 1),
            ("n[007,3]", "n007", 2),
            ("n[01-02]-ib", "n01-ib", 2),
            ("rack[1-2]node[01-16]", "rack1node01", 32),
            ("r[08-09]n[8,10-11]x,z[1-2]", "r08n8x", 8),
            ("gpu-a100-[001-128]", "gpu-a100-001", 128),
            (" n[1-2], m1 ", "n1", 3),
            ("n[1-999999999999999999]", "n1", 999_999_999_999_999_999),
        ] {
            let expected = HostList { first: first.to_string(), count };
            assert_eq!(text.parse(), Ok(expected), "{text}");
        }
    }

    #[test]
    fn what_is_no_list_is_refused_with_a_reason() {
        for text in [
            "",
            ",",
            "n1,",
            "n[",
            "n]",
            "n[1",
            "n[]",
            "n[a]",
            "n[1-]",
            "n[-1]",
            "n[3-1]",
            "n[1-2-3]",
            "n[[1]]",
            "n[1],,m1",
            "n 1",
            "n[1,]",
            "n[9999999999999999999]",
        ] {
            let error = text.parse::<HostList>().expect_err(text);
            assert!(!error.is_empty(), "{text}");
        }
    }

    #[test]
    fn a_list_has_a_bound() {
        let long = "n".repeat(MAX_LIST_BYTES + 1);
        assert!(long.parse::<HostList>().is_err());
        let huge = "n[1-999999999999999999],".repeat(40) + "m";
        assert_eq!(huge.parse::<HostList>().map(|l| l.count), Ok(u64::MAX));
    }
}
