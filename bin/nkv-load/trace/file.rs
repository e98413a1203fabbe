//! Reads a trace: one JSON object a line, of which `timestamp` (milliseconds) and `hash_ids` (the
//! blocks of the request's prefix, first to last) are used. Other fields are ignored; a line that
//! lacks these two ends the program, because the result of an incomplete replay would mislead.

use anyhow::Context;
use serde::Deserialize;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::Path;

/// Most blocks of one request: what one batch message may carry.
pub(super) const MAX_BLOCKS: usize = nkv::message::MAX_BATCH;

/// One request.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub(super) struct Request {
    /// When it was issued, in milliseconds since the trace began.
    #[serde(rename = "timestamp")]
    pub(super) timestamp_ms: f64,
    /// Ids of its blocks: equal ids stand for equal blocks with equal prefixes.
    pub(super) hash_ids: Vec<u64>,
}

/// The first `limit` requests of the trace at `path`.
///
/// # Errors
/// If the file cannot be read, or a line is no request; the message names the line.
pub(super) fn load(path: &Path, limit: usize) -> anyhow::Result<Vec<Request>> {
    let file = File::open(path).with_context(|| format!("--trace {}", path.display()))?;
    parse(BufReader::new(file), limit).with_context(|| format!("--trace {}", path.display()))
}

fn parse(lines: impl BufRead, limit: usize) -> anyhow::Result<Vec<Request>> {
    let mut requests = Vec::new();
    for (index, line) in lines.lines().enumerate() {
        if requests.len() == limit {
            break;
        }
        let line = line.with_context(|| format!("line {}", index + 1))?;
        if line.trim().is_empty() {
            continue;
        }
        let request: Request = serde_json::from_str(&line).map_err(|e| {
            anyhow::anyhow!(
                "line {} is no request, such as {{\"timestamp\": 0, \"hash_ids\": [1, 2]}}: {}",
                index + 1,
                in_one_line(&e)
            )
        })?;
        anyhow::ensure!(
            request.hash_ids.len() <= MAX_BLOCKS,
            "line {}: {} blocks, at most {MAX_BLOCKS} fit into one batch",
            index + 1,
            request.hash_ids.len()
        );
        requests.push(request);
    }
    Ok(requests)
}

/// The parser's message with the column only: it sees each line as a text of its own.
fn in_one_line(error: &serde_json::Error) -> String {
    let text = error.to_string();
    let place = format!(" at line {} column {}", error.line(), error.column());
    match text.strip_suffix(&place) {
        Some(what) => format!("{what} at column {}", error.column()),
        None => text,
    }
}

#[cfg(test)]
mod tests {
    use super::parse;

    #[test]
    fn two_fields_are_read_and_others_ignored() {
        let text = "{\"timestamp\": 3, \"input_length\": 9, \"hash_ids\": [0, 7]}\n\n\
                    {\"timestamp\": 4.5, \"hash_ids\": []}\n";
        let requests = parse(text.as_bytes(), usize::MAX).unwrap();
        assert_eq!(requests.len(), 2);
        assert_eq!(requests[0].hash_ids, [0, 7]);
        assert_eq!(requests[1].timestamp_ms, 4.5);
        assert_eq!(parse(text.as_bytes(), 1).unwrap().len(), 1);
    }

    #[test]
    fn a_line_that_is_no_request_is_named() {
        let text = "{\"timestamp\": 3, \"hash_ids\": [0]}\n{\"timestamp\": 3}\n";
        let error = format!("{:#}", parse(text.as_bytes(), usize::MAX).unwrap_err());
        assert!(error.contains("line 2") && error.contains("hash_ids"), "{error}");
        let error = format!("{:#}", parse("text\n".as_bytes(), usize::MAX).unwrap_err());
        assert!(error.starts_with("line 1 is no request") && error.contains("column"), "{error}");
        assert_eq!(error.matches("line").count(), 1, "{error}");
    }
}
