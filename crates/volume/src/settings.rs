//! The options of a mount that only its engine understands.

use std::fmt;

/// Options by name, each with its value in one form only, so that two of them can be compared; a
/// flag has an empty value. An engine makes them of what the user wrote, and reads them at mount.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Settings(Vec<(&'static str, String)>);

impl Settings {
    /// None yet.
    pub fn new() -> Settings {
        Settings::default()
    }

    /// The value of an option; `None`: it is not set.
    pub fn get(&self, name: &str) -> Option<&str> {
        let found = self.0.iter().find(|(known, _)| *known == name);
        found.map(|(_, value)| value.as_str())
    }

    /// Sets an option, in place of an earlier value.
    pub fn put(&mut self, name: &'static str, value: impl fmt::Display) {
        let value = value.to_string();
        match self.0.iter_mut().find(|(known, _)| *known == name) {
            Some((_, old)) => *old = value,
            None => self.0.push((name, value)),
        }
    }

    /// Takes an option back.
    pub fn remove(&mut self, name: &str) {
        self.0.retain(|(known, _)| *known != name);
    }

    /// All of them, in the order in which they were first set.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, &str)> {
        self.0.iter().map(|(name, value)| (*name, value.as_str()))
    }

    /// An option that is not the same in the two.
    pub fn difference(&self, other: &Settings) -> Option<&'static str> {
        let names = self.iter().chain(other.iter()).map(|(name, _)| name);
        let mut names = names.filter(|name| self.get(name) != other.get(name));
        names.next()
    }
}

/// As `-o` takes them.
impl fmt::Display for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, (name, value)) in self.iter().enumerate() {
            f.write_str(if i > 0 { "," } else { "" })?;
            f.write_str(name)?;
            if !value.is_empty() {
                write!(f, "={value}")?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_value_counts_and_a_difference_is_found_both_ways() {
        let mut settings = Settings::new();
        settings.put("mode", "sync");
        settings.put("huge", "");
        let served = settings.clone();
        settings.put("mode", "delayed");
        assert_eq!(settings.to_string(), "mode=delayed,huge");
        assert_eq!(settings.difference(&served), Some("mode"));
        settings.put("mode", "sync");
        assert_eq!(settings.difference(&served), None);
        settings.remove("huge");
        assert_eq!(settings.difference(&served), Some("huge"));
        assert_eq!(served.difference(&settings), Some("huge"));
    }
}
