//! Five million files: the time of a mount, and DRAM.

use std::path::Path;
use std::time::{Duration, Instant};

use crate::child::{Task, Touched};
use crate::plan::Plan;
use crate::report::{Found, Run, Table};
use crate::series::Series;
use crate::target::{Result, Setup};
use crate::workloads::tree::Tree;

const TREE: Tree = Tree {
    dirs: 5_000,
    files: 1_000,
    data_every: 0,
};
/// Files touched to see what each takes.
const TOUCHED_DIRS: u64 = 1_000;
const UNCLEAN_ROUNDS: usize = 5;

/// Runs it.
pub fn run(plan: &Plan) -> Result<Found> {
    let tree = Tree {
        dirs: plan.scaled(TREE.dirs),
        ..TREE
    };
    let columns = [
        "image",
        "before",
        "open ms",
        "mount ms",
        "made in s",
        "unmounted in ms",
    ];
    let mut mounts = Table::new("Mounting", &columns);
    let columns = [
        "image",
        "after",
        "inodes in DRAM",
        "DRAM MiB",
        "bytes per file",
    ];
    let mut memory = Table::new("DRAM", &columns);
    for (name, len, sparse) in [
        ("4 GiB", 4u64 << 30, false),
        ("1 TiB, sparse", 1 << 40, true),
    ] {
        let setup = Setup {
            len,
            sparse,
            ..plan.setup()
        };
        image(plan, name, &setup, tree, (&mut mounts, &mut memory))?;
    }
    let mut run = Run::new(
        "scale",
        format!("{} files in {} directories", tree.count(), tree.dirs),
    );
    run.tables = vec![mounts, memory];
    run.notes = vec![
        plan.clock_note(),
        "open: map the image file and find out what it is; mount: until the file system can be \
             used"
            .into(),
        "unclean: a process that changes things is killed, then the image is mounted".into(),
        "DRAM: what a process of its own gains, without the pages of the image".into(),
    ];
    Ok((run, Vec::new()))
}

fn image(
    plan: &Plan,
    name: &str,
    setup: &Setup,
    tree: Tree,
    (mounts, memory): (&mut Table, &mut Table),
) -> Result<()> {
    let temp = plan.temp()?;
    let path = temp.path().join("image");
    let engine = setup.mount(name, setup.create(&path)?)?;
    let start = Instant::now();
    tree.build(&engine)?;
    let built = start.elapsed();
    let start = Instant::now();
    drop(engine.unmount()?);
    let unmounted = start.elapsed();

    let (mut open, mut mount) = (Series::default(), Series::default());
    for _ in 0..plan.rounds {
        let (opened, mounted) = mount_once(plan, setup, &path)?;
        open.push(opened);
        mount.push(mounted);
    }
    mounts.row([
        name.into(),
        "clean unmount".into(),
        open.into(),
        mount.into(),
        built.as_secs_f64().into(),
        ms(unmounted).into(),
    ]);
    touches(plan, name, &path, tree, memory)?;

    let (mut open, mut mount) = (Series::default(), Series::default());
    for _ in 0..plan.rounds.min(UNCLEAN_ROUNDS) {
        let (process, _) = Task::Churn {
            image: path.clone(),
            on_disk: false,
        }
        .start(plan)?;
        drop(process);
        let (opened, mounted) = mount_once(plan, setup, &path)?;
        open.push(opened);
        mount.push(mounted);
    }
    mounts.row([
        name.into(),
        "killed".into(),
        open.into(),
        mount.into(),
        "".into(),
        "".into(),
    ]);
    Ok(())
}

/// Opens and mounts an image; how long each took, in ms.
pub fn mount_once(plan: &Plan, setup: &Setup, path: &Path) -> Result<(f64, f64)> {
    let mut pool = None;
    let open = plan.timed(|| {
        pool = Some(setup.open(path)?);
        Ok(())
    })?;
    let mut engine = None;
    let mounted = |pool| setup.mount("SoupFS", pool);
    let mount = plan.timed(|| {
        engine = pool.map(mounted).transpose()?;
        Ok(())
    })?;
    engine.map_or(Ok(()), |engine| engine.unmount().map(drop))?;
    Ok((ms(open), ms(mount)))
}

fn touches(plan: &Plan, name: &str, path: &Path, tree: Tree, memory: &mut Table) -> Result<()> {
    let part = Tree {
        dirs: TOUCHED_DIRS.min(tree.dirs),
        ..tree
    };
    let kept = format!("stat of {} files, all kept", part.count());
    let evicted = format!("stat of {} files, few kept", tree.count());
    for (what, tree, inodes_max) in [(kept, part, u64::MAX), (evicted, tree, 10_000)] {
        let image = path.to_owned();
        let task = Task::Touch {
            image,
            tree,
            inodes_max,
        };
        let (_process, line) = task.start(plan)?;
        let touched: Touched = serde_json::from_str(&line)?;
        let mib = touched.files as f64 / f64::from(1 << 20);
        let each = touched.files as f64 / tree.count() as f64;
        let row = [
            name.into(),
            what.into(),
            touched.inodes.into(),
            mib.into(),
            each.into(),
        ];
        memory.row(row);
        if inodes_max == u64::MAX {
            let mib = touched.mount as f64 / f64::from(1 << 20);
            memory.row([
                name.into(),
                "mount".into(),
                1u64.into(),
                mib.into(),
                0.0.into(),
            ]);
        }
    }
    Ok(())
}

fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1000.0
}
