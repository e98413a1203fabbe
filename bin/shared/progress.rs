//! Progress bars on stderr; not drawn if stderr is no terminal.

use indicatif::{ProgressBar, ProgressStyle};

/// A bar over `length` things called `what`.
pub fn bar(length: u64, what: &str) -> ProgressBar {
    let template =
        format!("{{bar:40}} {{pos}}/{{len}} {what} [{{elapsed}} gone, {{eta}} to go] {{msg}}");
    styled(ProgressBar::new(length), &template)
}

/// A bar over `length_ms` milliseconds.
pub fn time(length_ms: u64) -> ProgressBar {
    styled(ProgressBar::new(length_ms), "{bar:40} {percent}% [{elapsed} gone] {msg}")
}

fn styled(bar: ProgressBar, template: &str) -> ProgressBar {
    let style = ProgressStyle::with_template(template);
    bar.with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
}
