//! A file that says in which rack each host is: lines of a host and a path, separated by blanks,
//! as Hadoop's table mapping takes them. `#` begins a comment.

use nkv::RackPath;
use std::io::Read;
use std::net::IpAddr;

/// Longest file that is read.
const MAX_BYTES: u64 = 16 << 20;
/// Where Linux names this host.
const HOST_NAME: &str = "/proc/sys/kernel/hostname";

/// What such a file says about this host. Displayed as the file's path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RackMap {
    file: String,
    /// The rack of this host.
    pub rack: RackPath,
}

impl std::fmt::Display for RackMap {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.file)
    }
}

impl RackMap {
    /// Finds this host in a file: by its name, else by `listen`, else by the part of its name
    /// before the first point.
    ///
    /// # Errors
    /// One sentence: the file cannot be read, a line of it is wrong, or none names this host.
    pub fn read(file: &str, listen: IpAddr) -> Result<Self, String> {
        let failed = |e: std::io::Error| e.to_string();
        let mut text = String::new();
        let opened = std::fs::File::open(file).map_err(failed)?;
        opened.take(MAX_BYTES + 1).read_to_string(&mut text).map_err(failed)?;
        if text.len() as u64 > MAX_BYTES {
            return Err(format!("it has more than {MAX_BYTES} bytes, which is the most"));
        }
        let name = std::fs::read_to_string(HOST_NAME).unwrap_or_default();
        let rack = rack_of(&text, name.trim(), &listen.to_string());
        Ok(Self { file: file.to_string(), rack: rack? })
    }
}

/// The rack that such a text names for a host.
fn rack_of(text: &str, name: &str, listen: &str) -> Result<RackPath, String> {
    // The best first.
    let names = [name, listen, name.split('.').next().unwrap_or_default()];
    let mut found = None;
    for (number, line) in text.lines().enumerate() {
        let line = line.split('#').next().unwrap_or_default();
        let mut words = line.split_whitespace();
        let Some(host) = words.next() else { continue };
        let wrong = |why: String| format!("line {}: {why}", number + 1);
        let (Some(path), None) = (words.next(), words.next()) else {
            return Err(wrong("a host and the path of its rack are expected".to_string()));
        };
        let rack: RackPath = path.parse().map_err(wrong)?;
        let which = names.iter().position(|name| name.eq_ignore_ascii_case(host));
        match (which, &found) {
            (Some(which), Some((best, known))) if which == *best && *known != rack => {
                return Err(wrong(format!("{host} is in {rack}, and in {known} by a line above")));
            }
            (Some(which), Some((best, _))) if which < *best => found = Some((which, rack)),
            (Some(which), None) => found = Some((which, rack)),
            _ => {}
        }
    }
    found.map(|(_, rack)| rack).ok_or_else(|| {
        format!(
            "no line is of this host ({name}, {listen}): add one, or give --rack, and --rack-map \
             none"
        )
    })
}

#[cfg(test)]
mod tests {
    use super::{RackMap, rack_of};

    const MAP: &str = "# host  rack\n\n a1.dc.example /dc1/r1\na1 /dc1/other # short\n\
                       a2\t/dc1/r2\n10.0.0.7 /dc2/r1\n";

    #[test]
    fn a_host_is_found_by_its_name_the_short_one_or_its_address() {
        let of = |name, listen| rack_of(MAP, name, listen).map(|rack| rack.to_string());
        assert_eq!(of("a1.dc.example", "10.0.0.7"), Ok("/dc1/r1".to_string()));
        assert_eq!(of("A2.dc.example", "10.0.0.9"), Ok("/dc1/r2".to_string()));
        assert_eq!(of("a3", "10.0.0.7"), Ok("/dc2/r1".to_string()));
        let error = of("a3", "10.0.0.8").unwrap_err();
        assert!(error.contains("a3, 10.0.0.8"), "{error}");
    }

    #[test]
    fn a_wrong_line_is_named() {
        for (text, line) in [
            ("a\n", 1),
            ("a /r\nb r\n", 2),
            ("a /r x\n", 1),
            ("# \nc /r//s", 2),
            ("a /r\nb /r\nA /s", 3),
        ] {
            let error = rack_of(text, "a", "::1").unwrap_err();
            assert!(error.starts_with(&format!("line {line}: ")), "{error}");
        }
        let listen = "127.0.0.1".parse().unwrap();
        let error = RackMap::read("/nowhere/racks", listen).unwrap_err();
        assert!(error.contains("No such file"), "{error}");
    }
}
