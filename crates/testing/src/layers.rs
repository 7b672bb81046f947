//! The modules of a crate that are layers: its `lib.rs`, or the `main.rs` of a program, lists them,
//! and none uses one further down.

use std::collections::{BTreeMap, BTreeSet, HashMap};
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
    let roots = ["lib.rs", "main.rs"].map(|name| sources.0.join(name));
    let root = roots.iter().find(|root| root.exists());
    let lib = std::fs::read_to_string(root.expect("a root module")).expect("read");
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
                let there = place.get(other.as_str());
                let there = *there.unwrap_or_else(|| panic!("{file:?} uses {other}"));
                assert!(there < here, "{file:?} uses {other}, which is further down");
                upward += 1;
            }
        }
    }
    upward
}

/// A circle of modules of the crate whose manifest is in the folder `manifest`, in the order in
/// which each uses the next, if there is one. How they use what `lib.rs` exports does not count.
///
/// # Panics
/// The sources cannot be read.
pub fn circle(manifest: &Path) -> Option<Vec<String>> {
    let sources = Sources(manifest.join("src"));
    let files = std::fs::read_dir(&sources.0).expect("sources");
    let names = files.map(|file| file.expect("a file").path());
    let names = names.filter_map(|path| Some(path.file_stem()?.to_str()?.to_owned()));
    let modules: BTreeSet<String> = names
        .filter(|name| !["lib", "main", "tests"].contains(&name.as_str()))
        .collect();
    let uses = |module: &String| {
        let texts = sources.all(module).into_iter();
        let texts = texts.map(|file| std::fs::read_to_string(file).expect("read"));
        let all: BTreeSet<String> = texts.flat_map(|text| used(&text)).collect();
        all.into_iter().filter(|other| other != module).collect()
    };
    let mut left: BTreeMap<String, Vec<String>> =
        modules.iter().map(|m| (m.clone(), uses(m))).collect();
    // Who uses none of those that are left is in no circle.
    while let Some(done) = left
        .iter()
        .find(|(_, uses)| !uses.iter().any(|other| left.contains_key(other)))
        .map(|(module, _)| module.clone())
    {
        left.remove(&done);
    }
    let mut path: Vec<String> = vec![left.keys().next()?.clone()];
    loop {
        let last = path.last().expect("not empty");
        let next = left[last].iter().find(|other| left.contains_key(*other));
        let next = next.expect("who uses none is gone").clone();
        if let Some(start) = path.iter().position(|module| *module == next) {
            path.drain(..start);
            return Some(path);
        }
        path.push(next);
    }
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
        let file = self.0.join(format!("{module}.rs"));
        match file.exists() {
            true => file,
            false => self.0.join(module).join("mod.rs"),
        }
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
fn used(text: &str) -> Vec<String> {
    let text = text.split("#[cfg(test)]\nmod tests").next().unwrap_or(text);
    let code = text
        .lines()
        .map(|line| line.split("//").next().unwrap_or(line));
    let code: String = code.collect();
    let uses = code.split("crate::").skip(1);
    uses.flat_map(|rest| match rest.strip_prefix('{') {
        Some(list) => items(list),
        None => vec![first_word(rest)],
    })
    .collect()
}

/// The first words of a list, up to the brace that closes it.
fn items(list: &str) -> Vec<String> {
    let (mut depth, mut items) = (0, vec![String::new()]);
    for c in list.chars() {
        match c {
            '{' => depth += 1,
            '}' if depth == 0 => break,
            '}' => depth -= 1,
            ',' if depth == 0 => items.push(String::new()),
            _ if depth == 0 => items.last_mut().expect("an item").push(c),
            _ => {}
        }
    }
    let words = items.iter().map(|item| first_word(item.trim()));
    words.filter(|word| !word.is_empty()).collect()
}

fn first_word(text: &str) -> String {
    let end = text.find(|c: char| !c.is_alphanumeric() && c != '_');
    text[..end.unwrap_or(text.len())].to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uses_are_found() {
        let text = "use crate::a::B; // crate::c\nfn f() { crate::d_e::f() }\n\
                    use crate::{h::{I, j}, k,\n  l::M};\n#[cfg(test)]\nmod tests { crate::g }";
        assert_eq!(used(text), ["a", "d_e", "h", "k", "l"]);
    }

    #[test]
    fn no_crate_has_a_circle_of_modules() {
        let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let mut checked = 0;
        for folder in std::fs::read_dir(crates).expect("crates") {
            let folder = folder.expect("a crate").path();
            if !folder.join("src").exists() {
                continue;
            }
            assert_eq!(circle(&folder), None, "{}", folder.display());
            checked += 1;
        }
        assert!(checked > 15, "{checked}");
    }

    #[test]
    fn a_circle_is_found() {
        let dir = tempfile::tempdir().expect("a directory");
        let src = dir.path().join("src");
        std::fs::create_dir(&src).expect("made");
        for (name, text) in [
            ("lib", "mod a; mod b; mod c; mod d;"),
            ("a", "use crate::b::B;"),
            ("b", "fn f() { crate::c::g() }"),
            ("c", "use crate::{d, b::B};"),
            ("d", ""),
        ] {
            std::fs::write(src.join(name).with_extension("rs"), text).expect("written");
        }
        assert_eq!(circle(dir.path()), Some(vec!["b".into(), "c".into()]));
    }
}
