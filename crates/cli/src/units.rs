//! Sizes and durations as people write and read them.

use std::time::Duration;

/// Bytes from `4096`, `64K`, `512M`, `1.5T`, `4GiB`: powers of 1024; `4GB`: powers of 1000.
pub fn parse_size(text: &str) -> Result<u64, String> {
    let (number, unit) = split(text);
    let factor = match unit.to_ascii_uppercase().as_str() {
        "" | "B" => 1_u64,
        "K" | "KIB" => 1 << 10,
        "M" | "MIB" => 1 << 20,
        "G" | "GIB" => 1 << 30,
        "T" | "TIB" => 1 << 40,
        "P" | "PIB" => 1 << 50,
        "KB" => 1000,
        "MB" => 1_000_000,
        "GB" => 1_000_000_000,
        "TB" => 1_000_000_000_000,
        _ => return Err(format!("'{unit}' is not a unit of size; use K, M, G or T")),
    };
    let bad = || format!("'{text}' is not a size; write it like 512M, 4G or 1.5T");
    if let Ok(whole) = number.parse::<u64>() {
        return whole
            .checked_mul(factor)
            .ok_or_else(|| format!("'{text}' is too large"));
    }
    let number: f64 = number.parse().map_err(|_| bad())?;
    let bytes = number * factor as f64;
    // Beyond 2^63 no image can be, and the conversion below would saturate.
    if !bytes.is_finite() || bytes < 0.0 || bytes > i64::MAX as f64 {
        return Err(bad());
    }
    Ok(bytes.round() as u64)
}

/// A number of threads.
pub fn parse_threads(value: &str) -> Result<usize, String> {
    match value.parse() {
        Ok(count @ 1..=1024) => Ok(count),
        _ => Err("use a number from 1 to 1024".to_string()),
    }
}

/// How many, from `1000000`, `10k`, `5M`: powers of 1000.
pub fn parse_count(text: &str) -> Result<u64, String> {
    let (number, unit) = split(text);
    let factor = match unit {
        "" => 1_u64,
        "k" | "K" => 1000,
        "M" => 1_000_000,
        "G" => 1_000_000_000,
        _ => return Err(format!("'{unit}' is not a unit of number; use k, M or G")),
    };
    let number: u64 = number
        .parse()
        .map_err(|_| format!("'{text}' is not a number; write it like 10000, 10k or 1M"))?;
    number
        .checked_mul(factor)
        .ok_or_else(|| format!("'{text}' is too large"))
}

/// A duration from `1s`, `500ms`, `2m`; a bare number counts seconds.
pub fn parse_duration(text: &str) -> Result<Duration, String> {
    let (number, unit) = split(text);
    let seconds = match unit {
        "us" => 1e-6,
        "ms" => 1e-3,
        "" | "s" => 1.0,
        "m" | "min" => 60.0,
        _ => return Err(format!("'{unit}' is not a unit of time; use ms, s or m")),
    };
    let bad = || format!("'{text}' is not a duration; write it like 1s or 500ms");
    let number: f64 = number.parse().map_err(|_| bad())?;
    Duration::try_from_secs_f64(number * seconds).map_err(|_| bad())
}

fn split(text: &str) -> (&str, &str) {
    let text = text.trim();
    let end = text
        .find(|c: char| !(c.is_ascii_digit() || c == '.'))
        .unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    (number, unit.trim())
}

/// A size for people: `1.5 GiB`.
pub fn size(bytes: u64) -> String {
    const UNITS: [&str; 6] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
    let mut value = bytes as f64;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    if value.fract() == 0.0 || unit == 0 {
        format!("{value:.0} {}", UNITS[unit])
    } else {
        format!("{value:.1} {}", UNITS[unit])
    }
}

/// A span of time for people: `250 ms`, `1.5 s`, `2 min 5 s`.
pub fn span(ms: u64) -> String {
    match ms {
        0..1000 => format!("{ms} ms"),
        1000..60_000 => format!("{} s", (ms as f64 / 100.0).round() / 10.0),
        _ => format!("{} min {} s", ms / 60_000, ms / 1000 % 60),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_as_people_write_them() {
        for (text, bytes) in [
            ("4096", 4096),
            ("64k", 64 << 10),
            ("512M", 512 << 20),
            ("4G", 4 << 30),
            ("4 GiB", 4 << 30),
            ("4GB", 4_000_000_000),
            ("1.5T", 3 << 39),
        ] {
            assert_eq!(parse_size(text), Ok(bytes), "{text}");
        }
        for text in ["", "G", "-1G", "4X", "1..5G", "99999999999T", "NaN"] {
            assert!(parse_size(text).is_err(), "{text}");
        }
    }

    #[test]
    fn numbers_are_read_as_people_write_them() {
        assert_eq!(parse_count("1000000"), Ok(1_000_000));
        assert_eq!(parse_count("10k"), Ok(10_000));
        assert_eq!(parse_count("5M"), Ok(5_000_000));
        for text in ["", "M", "1.5M", "-1", "1Mi", "99999999999G"] {
            assert!(parse_count(text).is_err(), "{text}");
        }
    }

    #[test]
    fn durations_are_read_as_people_write_them() {
        assert_eq!(parse_duration("1s"), Ok(Duration::from_secs(1)));
        assert_eq!(parse_duration("500ms"), Ok(Duration::from_millis(500)));
        assert_eq!(parse_duration("0.5"), Ok(Duration::from_millis(500)));
        assert_eq!(parse_duration("2m"), Ok(Duration::from_secs(120)));
        assert!(parse_duration("1h").is_err());
        assert!(parse_duration("s").is_err());
    }

    #[test]
    fn sizes_are_shown_in_the_largest_unit_that_fits() {
        assert_eq!(size(0), "0 B");
        assert_eq!(size(4 << 30), "4 GiB");
        assert_eq!(size(1536 << 20), "1.5 GiB");
    }

    #[test]
    fn spans_of_time_are_shown_in_the_unit_that_fits() {
        for (ms, text) in [
            (0, "0 ms"),
            (999, "999 ms"),
            (1500, "1.5 s"),
            (2000, "2 s"),
            (125_999, "2 min 5 s"),
        ] {
            assert_eq!(span(ms), text);
        }
    }
}
