//! The modules of a crate that are layers: its `lib.rs` lists them, and none uses one further down.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

/// The sources of a crate.
struct Sources(PathBuf);

/// Checks the crate whose manifest is in the folder `manifest`; returns how many uses of other
/// modules there are, so that the caller can tell that sources were read.
///
/// # Panics
/// A module uses one further down in the list, or is not in it; or the sources cannot be read.
pub fn check(manifest: &str) -> usize {
    let sources = Sources(Path::new(manifest).join("src"));
    let lib = std::fs::read_to_string(sources.0.join("lib.rs")).expect("read");
    let order = sources.listed(&lib);
    let place: HashMap<&str, usize> = (0..).zip(&order).map(|(i, m)| (m.as_str(), i)).collect();
    for line in lib.lines().filter(|line| !line.starts_with("//!")) {
        let module = line
            .split("mod ")
            .nth(1)
            .and_then(|rest| rest.strip_suffix(';'));
        let is_listed = |module| place.contains_key(module) || module == "testing";
        assert!(module.is_none_or(is_listed), "{line} is not in the list");
    }
    let mut upward = 0;
    for (here, module) in order.iter().enumerate() {
        for file in sources.all(module) {
            let text = std::fs::read_to_string(&file).expect("read");
            for other in used(&text).into_iter().filter(|other| other != module) {
                let there = place.get(other);
                let there = *there.unwrap_or_else(|| panic!("{file:?} uses {other}"));
                assert!(there < here, "{file:?} uses {other}, which is further down");
                upward += 1;
            }
        }
    }
    upward
}

impl Sources {
    /// The modules in the order of the list in `lib.rs`: names in backticks in its numbered lines.
    fn listed(&self, lib: &str) -> Vec<String> {
        let mut all = Vec::new();
        let items = lib.lines().map_while(|line| line.strip_prefix("//!"));
        let mut items = items
            .map(str::trim)
            .skip_while(|line| !line.starts_with("1. "));
        let mut list: String = items.by_ref().take_while(|line| !line.is_empty()).collect();
        list.retain(|c| c != '[' && c != ']');
        for name in list.split('`').skip(1).step_by(2) {
            if self.source(name).exists() {
                all.push(name.to_owned());
            }
        }
        all
    }

    /// The file of a module of the crate.
    fn source(&self, module: &str) -> PathBuf {
        self.0.join(format!("{module}.rs"))
    }

    /// All source files of a module, tests aside.
    fn all(&self, module: &str) -> Vec<PathBuf> {
        let (mut found, mut folders) = (vec![self.source(module)], vec![self.0.join(module)]);
        while let Some(folder) = folders.pop() {
            let Ok(files) = std::fs::read_dir(folder) else {
                continue; // a module of one file
            };
            for path in files.map(|file| file.expect("a file").path()) {
                match path.file_name().and_then(|name| name.to_str()) {
                    Some("tests" | "tests.rs") => {}
                    _ if path.is_dir() => folders.push(path),
                    _ => found.push(path),
                }
            }
        }
        found
    }
}

/// The modules that a source uses, tests and comments aside.
fn used(text: &str) -> Vec<&str> {
    let text = text.split("#[cfg(test)]\nmod tests").next().unwrap_or(text);
    let code = text
        .lines()
        .map(|line| line.split("//").next().unwrap_or(line));
    code.flat_map(|line| line.split("crate::").skip(1))
        .filter_map(|rest| {
            rest.split(|c: char| !c.is_alphanumeric() && c != '_')
                .next()
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uses_are_found() {
        let text = "use crate::a::B; // crate::c\nfn f() { crate::d_e::f() }\n\
                    #[cfg(test)]\nmod tests { crate::g }";
        assert_eq!(used(text), ["a", "d_e"]);
    }
}
