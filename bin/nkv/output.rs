//! What goes to stdout: tables for people, one JSON object for programs. A closed pipe is returned
//! as an error, never a panic.

use crate::cli_error::CliError;
use comfy_table::{CellAlignment, Table, presets};
use nkv_programs::{exit, streams};
use serde::Serialize;

/// Writes to stdout, all of it.
pub(crate) fn write(bytes: &[u8]) -> Result<(), CliError> {
    streams::write(bytes).map_err(|e| CliError::io("stdout", e))
}

/// Writes what a command found or did: one JSON object, or text.
pub(crate) fn show(
    json: bool,
    object: &impl Serialize,
    text: impl FnOnce() -> String,
) -> Result<u8, CliError> {
    let printed = match json {
        true => serde_json::to_string(object).map_err(|e| CliError::io("stdout", e.into()))? + "\n",
        false => text(),
    };
    write(printed.as_bytes())?;
    Ok(exit::DONE)
}

/// A table without frames; columns from `right_from` on hold numbers.
pub(crate) fn table(header: &[&str], right_from: usize) -> Table {
    let mut table = Table::new();
    table.load_preset(presets::NOTHING).set_header(header.to_vec());
    for column in table.column_iter_mut() {
        column.set_padding((0, 2));
    }
    for column in table.column_iter_mut().skip(right_from) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table
}

/// The table's text, without blanks at the ends of lines.
pub(crate) fn lines(table: &Table) -> String {
    table.to_string().lines().map(|line| line.trim_end().to_string() + "\n").collect()
}

/// Numbers in a row.
pub(crate) fn numbers(of: &[u32], between: &str) -> String {
    of.iter().map(u32::to_string).collect::<Vec<_>>().join(between)
}

#[cfg(test)]
mod tests {
    use super::{lines, table};

    #[test]
    fn a_table_is_plain_lines() {
        let mut table = table(&["rank", "bytes"], 1);
        table.add_row(vec!["0", "12345678"]).add_row(vec!["1", "9"]);
        assert_eq!(lines(&table), "rank     bytes\n0     12345678\n1            9\n");
    }
}
