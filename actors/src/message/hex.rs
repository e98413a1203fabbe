//! Random ids of 64 bits, for `serde(with)`: numbers on the wire, sixteen hexadecimal digits in
//! JSON, where many readers keep only 53 bits of a number.

use serde::{Deserialize, Deserializer, Serializer, de};

pub(super) fn serialize<S: Serializer>(id: &u64, to: S) -> Result<S::Ok, S::Error> {
    if to.is_human_readable() {
        return to.collect_str(&format_args!("{id:016x}"));
    }
    to.serialize_u64(*id)
}

pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<u64, D::Error> {
    if from.is_human_readable() {
        let text = String::deserialize(from)?;
        return u64::from_str_radix(&text, 16).map_err(de::Error::custom);
    }
    u64::deserialize(from)
}

#[cfg(test)]
mod tests {
    use crate::message::{RankStats, Term};

    #[test]
    fn an_id_is_text_in_json_and_reads_back() {
        let term = Term { number: 3, master: u64::MAX - 1 };
        let json = serde_json::to_string(&term).unwrap();
        assert_eq!(json, r#"{"number":3,"master":"fffffffffffffffe"}"#);
        assert_eq!(serde_json::from_str::<Term>(&json).unwrap(), term);
        assert!(serde_json::from_str::<Term>(r#"{"number":3,"master":7}"#).is_err());
        let stats = RankStats { incarnation: 1 << 60, ..RankStats::default() };
        let json = serde_json::to_value(&stats).unwrap();
        assert_eq!(json["incarnation"], "1000000000000000");
        assert_eq!(serde_json::from_value::<RankStats>(json).unwrap(), stats);
    }
}
