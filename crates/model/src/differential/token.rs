//! A sequence as one word: seed and configuration in hexadecimal digits.

use super::Config;

const PREFIX: &str = "DIFF-";

pub(super) fn encode(config: Config, seed: u64) -> String {
    let Config {
        ops,
        remount_one_in,
        settle_one_in,
        check_one_in,
        threads,
        far,
    } = config;
    format!(
        "{PREFIX}{seed:016x}{ops:08x}{remount_one_in:04x}{settle_one_in:04x}{check_one_in:04x}\
         {threads:02x}{:x}",
        u8::from(far)
    )
}

pub(super) fn decode(token: &str) -> Option<(Config, u64)> {
    let mut rest = token.strip_prefix(PREFIX)?;
    let mut take = |digits: usize| {
        let (field, after) = rest.split_at_checked(digits)?;
        rest = after;
        u64::from_str_radix(field, 16).ok()
    };
    let seed = take(16)?;
    let config = Config {
        ops: take(8)? as u32,
        remount_one_in: take(4)? as u16,
        settle_one_in: take(4)? as u16,
        check_one_in: take(4)? as u16,
        threads: take(2)? as u8,
        far: take(1)? == 1,
    };
    rest.is_empty().then_some((config, seed))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_stands_for_seed_and_configuration() {
        let config = Config {
            ops: 77,
            threads: 3,
            far: false,
            ..Config::default()
        };
        for seed in [0, 1, u64::MAX] {
            assert_eq!(decode(&encode(config, seed)), Some((config, seed)));
        }
        for token in ["", "DIFF-", "DIFF-12", "X", "DIFF-00000000000000zz"] {
            assert_eq!(decode(token), None);
        }
        assert_eq!(decode(&(encode(config, 1) + "0")), None);
    }
}
