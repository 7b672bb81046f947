//! The list of dumps that were made, as dump(8) keeps it in `/etc/dumpdates`: a line for each image
//! and level, with the date of the last one.

use std::fmt;
use std::fs;
use std::io::{self, Write};
use std::path::Path;

use jiff::tz::TimeZone;
use jiff::{Timestamp, Zoned};

/// How a date is written: as ctime(3) does, with the offset of its time zone.
const FORMAT: &str = "%a %b %e %H:%M:%S %Y %z";

/// A line.
struct Line {
    image: String,
    level: u8,
    date: Timestamp,
}

impl Line {
    fn parse(text: &str) -> Option<Line> {
        let (image, rest) = text.split_once(char::is_whitespace)?;
        let (level, date) = rest.trim_start().split_once(char::is_whitespace)?;
        let words: Vec<&str> = date.split_whitespace().collect();
        Some(Line {
            image: image.to_owned(),
            level: level.parse().ok()?,
            date: Zoned::strptime("%a %b %d %H:%M:%S %Y %z", words.join(" "))
                .ok()?
                .timestamp(),
        })
    }
}

impl fmt::Display for Line {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        let date = self.date.to_zoned(TimeZone::system());
        let (image, level) = (&self.image, self.level);
        write!(to, "{image:<32} {level} {}", date.strftime(FORMAT))
    }
}

/// The date of the last dump of a lower level than this, in seconds since 1970, and its level.
///
/// # Errors
/// The list cannot be read; one that does not exist is empty.
pub fn last_below(list: &Path, image: &str, level: u8) -> io::Result<Option<(u8, i64)>> {
    let lines = read(list)?;
    let lines = lines.lines().filter_map(Line::parse);
    let below = lines.filter(|line| line.image == image && line.level < level);
    let last = below.max_by_key(|line| line.date);
    Ok(last.map(|line| (line.level, line.date.as_second())))
}

/// Notes a dump: its line takes the place of the last one of the same image and level. Lines that
/// make no sense stay.
///
/// # Errors
/// The list cannot be read or written; it is as it was.
pub fn note(list: &Path, image: &str, level: u8, date: i64) -> io::Result<()> {
    let date = Timestamp::from_second(date).map_err(io::Error::other)?;
    let new = Line {
        image: image.to_owned(),
        level,
        date,
    };
    let is_old = |text: &&str| {
        Line::parse(text).is_some_and(|line| (line.image.as_str(), line.level) == (image, level))
    };
    let mut text = String::new();
    for line in read(list)?.lines().filter(|line| !is_old(line)) {
        text.push_str(line);
        text.push('\n');
    }
    text.push_str(&format!("{new}\n"));
    let mut beside = list.as_os_str().to_owned();
    beside.push(".new");
    let mut file = fs::File::create(&beside)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()?;
    fs::rename(&beside, list)
}

fn read(list: &Path) -> io::Result<String> {
    match fs::read_to_string(list) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(String::new()),
        read => read,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_dump_of_a_lower_level_counts() {
        let home = tempfile::tempdir().expect("a folder");
        let list = home.path().join("dumpdates");
        assert_eq!(last_below(&list, "a.img", 9).expect("empty"), None);
        let foreign = "# a comment\n/dev/sda1 0 Sun Sep  6 14:47:03 2020 +0200\n";
        fs::write(&list, foreign).expect("written");
        let day = 86_400;
        for (image, level, date) in [
            ("a.img", 0, 10 * day),
            ("a.img", 3, 11 * day),
            ("b.img", 0, 12 * day),
            ("a.img", 2, 13 * day),
            ("a.img", 3, 14 * day),
        ] {
            note(&list, image, level, date).expect("noted");
        }
        let last = |level| last_below(&list, "a.img", level).expect("read");
        assert_eq!(last(0), None);
        assert_eq!(last(1), Some((0, 10 * day)));
        assert_eq!(last(3), Some((2, 13 * day)));
        assert_eq!(last(9), Some((3, 14 * day)));
        let of_others = last_below(&list, "/dev/sda1", 1).expect("read");
        assert_eq!(of_others, Some((0, 1_599_396_423)));
        let text = fs::read_to_string(&list).expect("there");
        assert!(text.starts_with(foreign), "{text}");
        assert_eq!(text.lines().count(), 6, "{text}");
    }
}
