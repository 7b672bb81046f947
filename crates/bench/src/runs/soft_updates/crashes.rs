//! The time of a mount behind a crash, by the size of the image.

use std::ffi::CString;
use std::time::{Duration, Instant};

use ffs::Mode;

use super::line;
use crate::participants::MountProcess;
use crate::plan::Plan;
use crate::report::{Better, Chart, Point, Shape};
use crate::series::Series;
use crate::target::{BlockSetup, Blocks, Result, Target};

/// Sizes of images: GiB.
const GIB: [u64; 3] = [1, 32, 1024];
/// Files of each image, in directories of so many.
const FILES: u64 = 20_000;
const FILES_PER_DIR: u64 = 1_000;
/// Fewer than five rounds decide nothing.
const ROUNDS_MAX: usize = 5;
/// For all rounds of a size, if they are more than two.
const TIME: Duration = Duration::from_secs(10);

/// `tureen mount` of an image of mode soft that was not unmounted: ms until it can be used.
pub fn mounts(plan: &Plan) -> Result<Chart> {
    let title = "Time of a mount behind a crash";
    let mut chart = Chart::new(title, "GiB", "ms", Better::Less, Shape::Growth);
    plan.program()?;
    let mut points = Vec::new();
    for (i, gib) in GIB.into_iter().enumerate() {
        let what = format!("mount behind a crash: {gib} GiB");
        plan.progress.step(&what, i, GIB.len());
        points.push(Point::new(gib, mount(plan, gib)?));
    }
    chart.lines = vec![line("soft", points)];
    Ok(chart)
}

fn mount(plan: &Plan, gib: u64) -> Result<Series> {
    let temp = plan.temp()?;
    let image = temp.path().join("image");
    let setup = BlockSetup {
        sparse: true,
        bytes_per_inode: 16384,
        ..BlockSetup::in_mode(Mode::Soft, gib << 30)
    };
    let mut disk = setup.create(&image)?;
    let mut series = Series::default();
    let (plan, rounds) = (&plan.part(TIME), plan.rounds.min(ROUNDS_MAX));
    for round in 0..rounds {
        if round >= 2 && plan.is_over() {
            break;
        }
        let blocks = setup.mount("crashed", disk)?;
        crash(plan, &blocks, round)?;
        drop(blocks);
        let dir = temp.path().join(round.to_string());
        std::fs::create_dir(&dir)?;
        let begin = Instant::now();
        let process = MountProcess::of_image(plan, &image, &dir)?;
        series.push(begin.elapsed().as_secs_f64() * 1000.0);
        // It unmounts, and the image is clean.
        drop(process);
        disk = setup.open(&image)?;
    }
    Ok(series)
}

/// Files that are durable, and others of which a part is; then nobody unmounts.
fn crash(plan: &Plan, blocks: &Blocks, round: usize) -> Result<()> {
    let engine = &blocks.engine;
    let files = match round {
        0 => plan.scaled(FILES),
        _ => FILES_PER_DIR,
    };
    for i in 0..files {
        let dir = format!("{round}-{}", i / FILES_PER_DIR);
        if i % FILES_PER_DIR == 0 {
            engine.mkdir(&CString::new(dir.as_str())?)?;
        }
        engine.create_close(&CString::new(format!("{dir}/{i}"))?)?;
    }
    engine.sync()?;
    let last = CString::new(format!("{round}-last"))?;
    let file = engine.create(&last)?;
    engine.write(file, &[1; 4096])?;
    engine.close(file)
}
