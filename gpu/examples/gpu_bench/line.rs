//! One JSON line for each result, written at once: what was measured stays if the next part fails.

use std::io::Write;

/// See the file's first paragraph.
pub struct Lines {
    of: String,
}

fn quoted(text: &str) -> String {
    let plain = text.chars().map(|c| if c.is_control() || "\"\\".contains(c) { ' ' } else { c });
    format!("\"{}\"", plain.collect::<String>())
}

/// Some four digits.
fn number(value: f64) -> String {
    if value == 0.0 || !value.is_finite() {
        return "0".to_string();
    }
    let digits = (3 - value.abs().log10().floor() as i32).clamp(0, 6) as usize;
    format!("{value:.digits$}")
}

impl Lines {
    /// Lines that name what was measured.
    pub fn of(what: &str) -> Self {
        Self { of: what.to_string() }
    }

    fn write(&self, name: &str, rest: &str) {
        let mut out = std::io::stdout().lock();
        let (name, of) = (quoted(name), quoted(&self.of));
        // Whoever reads the lines may have ended.
        let _ = writeln!(out, "{{\"name\":{name},\"of\":{of},{rest}}}");
        let _ = out.flush();
    }

    /// Something that is no number.
    pub fn fact(&self, name: &str, text: &str) {
        self.write(name, &format!("\"text\":{}", quoted(text)));
    }

    /// A figure, and what it is compared with.
    pub fn figure(&self, name: &str, unit: &str, ours: f64, baseline: Option<(&str, f64)>) {
        let ours_text = number(ours);
        let mut rest = format!("\"ours\":{ours_text},\"unit\":{}", quoted(unit));
        if let Some((what, theirs)) = baseline {
            let (theirs_text, ratio) = (number(theirs), number(ours / theirs));
            rest += &format!(
                ",\"baseline\":{theirs_text},\"against\":{},\"ratio\":{ratio}",
                quoted(what)
            );
        }
        self.write(name, &rest);
    }

    /// Rounds, and how many of them went wrong; `expected`: what that should be.
    pub fn count(&self, name: &str, rounds: u64, wrong: u64, expected: &str) {
        let rest =
            format!("\"rounds\":{rounds},\"wrong\":{wrong},\"expected\":{}", quoted(expected));
        self.write(name, &rest);
    }
}
