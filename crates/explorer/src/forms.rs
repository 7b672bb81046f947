//! Forms in which parts of a run are kept in files, for `#[serde(with = ...)]`.

/// Bytes as text: digits in hex, and what repeats as one byte, `*` and how often.
pub(crate) mod bytes {
    use serde::de::Error;
    use serde::{Deserialize, Deserializer, Serializer};
    use std::fmt::Write;

    /// From here on a repetition is shorter than the digits.
    const RUN: usize = 4;

    pub fn text(bytes: &[u8]) -> String {
        let mut text = String::new();
        for same in bytes.chunk_by(|a, b| a == b) {
            // Writing to a string does not fail.
            let _ = match same.len() {
                n if n >= RUN => write!(text, " {:02x}*{n} ", same[0]),
                n => write!(text, "{}", format!("{:02x}", same[0]).repeat(n)),
            };
        }
        text.trim().replace("  ", " ")
    }

    pub fn parse(text: &str) -> Option<Vec<u8>> {
        let mut bytes = Vec::new();
        for part in text.split(' ').filter(|part| !part.is_empty()) {
            if let Some((byte, times)) = part.split_once('*') {
                let byte = u8::from_str_radix(byte, 16).ok()?;
                bytes.resize(bytes.len() + times.parse::<u32>().ok()? as usize, byte);
                continue;
            }
            for digits in part.as_bytes().chunks(2) {
                let digits = std::str::from_utf8(digits).ok()?;
                bytes.push(u8::from_str_radix(digits, 16).ok()?);
            }
        }
        Some(bytes)
    }

    pub fn serialize<S: Serializer>(bytes: &[u8], to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(&text(bytes))
    }

    pub fn deserialize<'a, D: Deserializer<'a>>(from: D) -> Result<Vec<u8>, D::Error> {
        let text = String::deserialize(from)?;
        parse(&text).ok_or_else(|| D::Error::custom("no bytes"))
    }
}

/// Maps whose keys are no text, as lists of pairs.
pub(crate) mod pairs {
    use serde::{Deserialize, Deserializer, Serialize, Serializer};
    use std::collections::BTreeMap;

    pub fn serialize<K: Serialize, V: Serialize, S: Serializer>(
        map: &BTreeMap<K, V>,
        to: S,
    ) -> Result<S::Ok, S::Error> {
        to.collect_seq(map)
    }

    pub fn deserialize<'a, K, V, D>(from: D) -> Result<BTreeMap<K, V>, D::Error>
    where
        K: Deserialize<'a> + Ord,
        V: Deserialize<'a>,
        D: Deserializer<'a>,
    {
        let pairs = Vec::<(K, V)>::deserialize(from)?;
        Ok(pairs.into_iter().collect())
    }
}

/// A kind, as in `st_mode`.
pub(crate) mod kind {
    use serde::de::Error;
    use serde::{Deserialize, Deserializer, Serializer};
    use vfs::Kind;

    pub fn serialize<S: Serializer>(kind: &Kind, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_u32(kind.mode_bits())
    }

    pub fn deserialize<'a, D: Deserializer<'a>>(from: D) -> Result<Kind, D::Error> {
        Kind::from_mode(u32::deserialize(from)?).ok_or_else(|| D::Error::custom("no kind"))
    }
}

/// A time, in nanoseconds.
pub(crate) mod time {
    use serde::{Deserialize, Deserializer, Serializer};
    use vfs::Time;

    pub fn serialize<S: Serializer>(time: &Time, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_i64(time.0)
    }

    pub fn deserialize<'a, D: Deserializer<'a>>(from: D) -> Result<Time, D::Error> {
        i64::deserialize(from).map(Time)
    }
}

/// Times, in nanoseconds.
pub(crate) mod times {
    use serde::{Deserialize, Deserializer, Serializer};
    use vfs::Time;

    pub fn serialize<S: Serializer>(times: &[Time; 4], to: S) -> Result<S::Ok, S::Error> {
        to.collect_seq(times.map(|time| time.0))
    }

    pub fn deserialize<'a, D: Deserializer<'a>>(from: D) -> Result<[Time; 4], D::Error> {
        <[i64; 4]>::deserialize(from).map(|times| times.map(Time))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_read_as_they_were_written() {
        for case in [
            vec![],
            vec![1],
            vec![0; 5],
            vec![1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3, 3, 4, 5],
            [vec![0xdb; 4096], vec![7, 8], vec![0; 64], vec![9; 64]].concat(),
        ] {
            let text = bytes::text(&case);
            assert_eq!(bytes::parse(&text), Some(case), "{text}");
        }
        assert_eq!(bytes::text(&[7, 8, 0, 0, 0, 0, 9]), "0708 00*4 09");
        assert_eq!(bytes::parse("zz"), None);
    }
}
