//! Workloads with names that clash: all of them hash to one bucket of their directory.
//!
//! SoupFS keeps what is pending in a directory by stripe, of which it has 16, and a batch takes the
//! beginning of a stripe. What goes wrong there between different names the other families hardly
//! see: most of their few names have a stripe for themselves.

use crate::engine::Engine;
use crate::workload::Workload;

/// The same with other names, of one bucket. Not for what starts from an image, which has names
/// already.
pub fn clashing(workload: Workload) -> Workload {
    let mut ops = workload.ops;
    for path in ops.iter_mut().flat_map(|op| op.paths_mut()) {
        *path = clashing_path(workload.engine, path);
    }
    Workload {
        name: workload.name.replace('-', "-clash-"),
        ops,
        ..workload
    }
}

fn clashing_path(engine: &dyn Engine, path: &str) -> String {
    let names = path.split('/').filter(|name| !name.is_empty());
    let clashing = |name: &str| engine.clashing(name).unwrap_or(name.to_owned());
    names.map(clashing).collect::<Vec<_>>().join("/")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engines;

    #[test]
    fn different_paths_stay_different_and_the_root_stays_the_root() {
        let path = |path| clashing_path(engines::usual(), path);
        assert_eq!(path(""), "");
        let (one, other) = (path("A/foo"), path("A/foo2"));
        assert!(one != other && one.starts_with(&format!("{}/foo~", path("A"))));
    }
}
