//! All that the image of a crash must be fit for: the auditor finds nothing but what a crash may
//! leave, it mounts at once, the tree is one that history allows, fsck and the reclaimer leave no
//! leak, and everything can be used.

use crate::judge;
use crate::op::{Op, Side};
use crate::run::{Run, mount, recovered};
use crate::states::Moment;
use crate::tree::{Flaw, Tree};
use pmem::Pool;
use soupfs::Mode;
use soupfs::audit::{Class, Problem, Totals};
use soupfs::fsck::{CheckOptions, Outcome, Report, check};
use std::sync::Arc;
use vfs::{Kind, ManualClock, Time};

/// A time after everything that a workload does.
pub fn later() -> Arc<ManualClock> {
    Arc::new(ManualClock::new(Time(1 << 60)))
}

/// Judge an image; returns its tree. `used`: also whether it can be repaired and used.
///
/// # Errors
/// What is wrong.
pub fn examine(run: &Run, moment: Moment, pool: &Arc<Pool>, used: bool) -> Result<Tree, Flaw> {
    marked(run, moment, pool)?;
    sound(pool)?;
    let tree = recovered(pool)?;
    judge::crashed(run, moment, &tree)?;
    if used {
        sound(pool).map_err(|e| format!("once mounted: {e}"))?;
        repair(pool, &tree)?;
        use_up(pool)?;
    }
    Ok(tree)
}

/// What was unmounted cleanly is marked so.
fn marked(run: &Run, moment: Moment, pool: &Arc<Pool>) -> Result<(), Flaw> {
    let unmounted = moment.ended && moment.step + 1 == run.steps.len();
    if unmounted && run.clean && !soupfs::inspect(pool).is_ok_and(|image| image.clean) {
        return Err("unmounted, and not clean".into());
    }
    Ok(())
}

/// Run fsck.
///
/// # Errors
/// It cannot run.
pub fn fsck(pool: &Arc<Pool>, repair: bool) -> Result<Report, Flaw> {
    let options = CheckOptions { repair, threads: 1 };
    check(pool, &options, &|_| ()).map_err(|e| e.to_string())
}

/// Whether a crash may leave this. Not blocks behind the end of a file: they get there with the
/// size.
fn may_be_left(problem: Problem) -> bool {
    problem.class() != Class::Violation && problem != Problem::BeyondEnd
}

/// The auditor finds nothing but what a crash may leave.
///
/// # Errors
/// What it finds.
pub fn sound(pool: &Arc<Pool>) -> Result<(), Flaw> {
    let report = fsck(pool, false)?;
    let bad = report
        .left
        .iter()
        .any(|f| !may_be_left(f.problem) || report.was_clean);
    if bad || report.more > 0 {
        Err(format!("audit:\n{report}"))
    } else {
        Ok(())
    }
}

/// An image without any flaw, not even a leak.
///
/// # Errors
/// What is wrong.
pub fn clean(pool: &Arc<Pool>) -> Result<Totals, Flaw> {
    let report = fsck(pool, false)?;
    if report.outcome != Outcome::Clean || !report.was_clean {
        return Err(format!("it is not clean:\n{report}"));
    }
    Ok(report.totals)
}

/// Whether a tree is another one, with its contents.
///
/// # Errors
/// Where they differ.
pub fn same(now: &Tree, before: &Tree) -> Result<(), Flaw> {
    match now.difference(before) {
        Some(difference) => Err(difference),
        None if now.contents != before.contents => Err("files hold other bytes".into()),
        None => Ok(()),
    }
}

/// fsck leaves no leaks, exact counts, and the tree as it is.
fn repair(pool: &Arc<Pool>, tree: &Tree) -> Result<(), Flaw> {
    let report = fsck(pool, true)?;
    if report.outcome == Outcome::ErrorsLeft {
        return Err(format!("fsck gives up:\n{report}"));
    }
    clean(pool).map_err(|e| format!("after fsck: {e}"))?;
    same(&recovered(pool)?, tree).map_err(|e| format!("fsck changed the tree: {e}"))
}

/// Something can be made in every directory, everything can be removed, and all space is free then.
fn use_up(pool: &Arc<Pool>) -> Result<(), Flaw> {
    let mut side = Side::new(mount(pool.clone(), Mode::Delayed, 1, later())?);
    let (dirs, mut all) = paths(&Tree::of(&side.fs, &[])?)?;
    for dir in &dirs {
        let path = join(dir, "fresh");
        let write = Op::Write {
            path: path.clone(),
            at: None,
            len: 5000,
            fill: 0xaa,
        };
        for op in [Op::Create(path.clone()), write] {
            match side.run(&op) {
                Ok(()) => {}
                // A full image is one that can be used, too: everything can be removed.
                Err(e) if e.errno() == vfs::Errno::NOSPC => break,
                Err(e) => return Err(format!("using it, {op}: {e}")),
            }
        }
        if side.find(&path).is_ok() {
            all.push((path, false));
        }
    }
    let mut run = |op: Op| side.run(&op).map_err(|e| format!("using it, {op}: {e}"));
    run(Op::Syncfs)?;
    // What is deepest goes first.
    all.sort_by_key(|(path, _)| std::cmp::Reverse(path.matches('/').count()));
    for (path, is_dir) in all {
        run(if is_dir {
            Op::Rmdir(path)
        } else {
            Op::Unlink(path)
        })?;
    }
    run(Op::Syncfs)?;
    side.fs.unmount().map_err(|e| format!("unmount: {e}"))?;
    drop(side);
    let totals = clean(pool).map_err(|e| format!("after using it: {e}"))?;
    if (totals.inodes, totals.names) != (1, 0) {
        return Err(format!("after everything was removed there are {totals:?}"));
    }
    Ok(())
}

fn join(dir: &str, name: &str) -> String {
    match dir {
        "" => name.to_owned(),
        dir => format!("{dir}/{name}"),
    }
}

/// The paths of all directories, the root's first; and of all names, with whether they are
/// directories.
type Paths = (Vec<String>, Vec<(String, bool)>);

fn paths(tree: &Tree) -> Result<Paths, Flaw> {
    let (mut dirs, mut all) = (vec![String::new()], vec![]);
    let mut at = vec![(tree.root, String::new())];
    while let Some((dir, path)) = at.pop() {
        for (name, child) in &tree.objects[&dir].names {
            let Ok(name) = std::str::from_utf8(name) else {
                return Err("a name that nobody gave".into());
            };
            let path = join(&path, name);
            let is_dir = tree.objects[child].kind == Kind::Dir;
            all.push((path.clone(), is_dir));
            if is_dir {
                dirs.push(path.clone());
                at.push((*child, path));
            }
        }
    }
    Ok((dirs, all))
}
