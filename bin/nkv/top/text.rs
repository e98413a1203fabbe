//! A screen as plain text, for pipes and logs: the same lines as on a terminal, every rank, without
//! colours.

use super::draw::parts;
use super::model::Screen;

/// The text, ending in a line feed.
pub(super) fn plain(screen: &Screen) -> String {
    let parts = parts(screen, 0..screen.ranks.len());
    let mut text = String::new();
    for (index, block) in std::iter::once(&parts.head).chain(&parts.tables).enumerate() {
        if index > 0 {
            text.push('\n');
        }
        for line in block {
            text += line.to_string().trim_end();
            text.push('\n');
        }
    }
    for line in &parts.troubles {
        text += line.to_string().trim_end();
        text.push('\n');
    }
    text
}
