//! The check of an ext2 image with many files, beside e2fsck: of a clean one, and of one that a
//! kill left.

use std::ffi::CString;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use ffs::Mode;
use vfs::{Clock, SystemClock};

use super::commands::{command, output};
use super::pinned::Pinned;
use crate::child::Task;
use crate::participants::file_system_of;
use crate::plan::Plan;
use crate::report::{Better, Chart, E2FSCK, FSCK, Found, Line, Point, Run, Shape};
use crate::series::Series;
use crate::target::{BlockSetup, Result, Target};

/// Directories, and files in each.
const DIRS: u64 = 1_000;
const FILES_PER_DIR: u64 = 1_000;
/// As mkfs.ext2 makes images by default.
const BYTES_PER_INODE: u32 = 16 << 10;
const BLOCK: usize = 4096;
/// One file in so many has contents: a block, or so many that one of them leads to others.
const CONTENTS_EVERY: u64 = 4;
const LONG_EVERY: u64 = 1_000;
const LONG_BLOCKS: u64 = 20;
/// Files that come and go in one directory until the kill.
const CHURN: u64 = 2_000;
/// For all rounds, if they are enough to decide something.
const TIME: Duration = Duration::from_secs(60);
const ROUNDS_MIN: usize = 5;

/// What is checked: its name, whether it was killed, and whether what is found is repaired.
const OPS: [(&str, bool, bool); 4] = [
    ("clean, -n", false, false),
    ("clean, -p", false, true),
    ("killed, -n", true, false),
    ("killed, -p", true, true),
];

/// Who checks.
#[derive(Clone, Copy)]
enum Checker {
    /// The check of the engine, by function calls, on so many cores and with as many threads.
    Here(usize),
    /// `tureen fsck`, a process.
    Tureen,
    /// e2fsck, a process.
    E2fsck,
}

impl Checker {
    fn name(self) -> String {
        match self {
            Checker::Here(1) => "check in-process, 1 thread".into(),
            Checker::Here(threads) => format!("check in-process, {threads} threads"),
            Checker::Tureen => FSCK.into(),
            Checker::E2fsck => E2FSCK.into(),
        }
    }
}

/// Images, and how they are checked.
struct Images<'a> {
    plan: &'a Plan,
    clean: PathBuf,
    /// What a kill left of it, if there was a program to kill.
    killed: Option<PathBuf>,
    /// What is repaired, each time anew.
    copy: PathBuf,
    /// How e2fsck repairs what the kill left: some of it, it does not without being told.
    answer: &'static str,
}

/// Runs it.
pub fn run(plan: &Plan) -> Result<Found> {
    let dirs = plan.scaled(DIRS);
    let count = dirs * FILES_PER_DIR;
    let temp = plan.temp()?;
    plan.progress.step("fsck: an image", 0, 1);
    let mut images = Images {
        plan,
        clean: temp.path().join("clean"),
        killed: None,
        copy: temp.path().join("copy"),
        answer: "-fp",
    };
    build(&images.clean, dirs)?;
    let mut run = Run::new("fsck", format!("an ext2 image with {count} files, checked"));
    run.baseline = E2FSCK.into();
    let mut checkers = vec![Checker::Here(1), Checker::Here(2)];
    match plan.program() {
        Ok(_) => {
            checkers.push(Checker::Tureen);
            images.kill(temp.path().join("killed"))?;
        }
        Err(why) => run
            .notes
            .push(format!("no figures of a killed image: {why}")),
    }
    match images.judge() {
        Ok(said) => {
            checkers.push(Checker::E2fsck);
            run.notes.extend(said);
        }
        Err(why) => run.notes.push(format!("no figures of {E2FSCK}: {why}")),
    }
    run.charts.push(images.chart(&checkers, count)?);
    run.notes.extend([
        format!(
            "{count} files in {dirs} directories, in memory ({}): one in {CONTENTS_EVERY} has a \
             block of contents, one in {LONG_EVERY} has {LONG_BLOCKS}; an inode for {} KiB, as \
             mkfs.ext2 has it",
            file_system_of(&plan.scratch),
            BYTES_PER_INODE >> 10
        ),
        "-n looks, -p repairs, and e2fsck has -f with both: an image that is marked clean is \
         checked all the same. Processes are started and ended in their time"
            .into(),
        "killed: a process in mode soft makes and removes files of 4 KiB, and makes them durable \
         meanwhile, when it is killed. What is repaired is a new copy each time; of our repairs \
         e2fsck says once that nothing is left"
            .into(),
        "in-process: function calls, on as many cores as there are threads".into(),
    ]);
    Ok((run, Vec::new()))
}

fn setup(files: u64) -> BlockSetup {
    // Some more: inodes are handed out by groups, and files come and go.
    let inodes = files + files / 16 + (1 << 15);
    BlockSetup {
        sparse: true,
        bytes_per_inode: BYTES_PER_INODE,
        ..BlockSetup::in_mode(Mode::Soft, inodes * u64::from(BYTES_PER_INODE))
    }
}

fn build(image: &Path, dirs: u64) -> Result<()> {
    let setup = setup(dirs * FILES_PER_DIR);
    let blocks = setup.mount("built", setup.create(image)?)?;
    let (engine, block) = (&blocks.engine, [7; BLOCK]);
    for dir in 0..dirs {
        engine.mkdir(&CString::new(dir.to_string())?)?;
        for i in 0..FILES_PER_DIR {
            let file = engine.create(&CString::new(format!("{dir}/file{i}"))?)?;
            let blocks = match i {
                i if i.is_multiple_of(LONG_EVERY) => LONG_BLOCKS,
                i => u64::from(i.is_multiple_of(CONTENTS_EVERY)),
            };
            (0..blocks).try_for_each(|_| engine.write(file, &block))?;
            engine.close(file)?;
        }
    }
    blocks.unmount().map(drop)
}

/// Makes and removes files, and makes them durable meanwhile, until this process is killed; says
/// "ready" in the second turn.
pub(super) fn churn(image: &Path) -> Result<()> {
    let setup = BlockSetup::default();
    let blocks = setup.mount("churned", setup.open(image)?)?;
    let engine = &blocks.engine;
    std::thread::scope(|scope| {
        // If the disk fails, so does the other one.
        scope.spawn(|| while engine.sync().is_ok() {});
        for turn in 0u64.. {
            let dir = format!("churn{turn}");
            engine.mkdir(&CString::new(dir.as_str())?)?;
            let name = |i: u64| CString::new(format!("{dir}/{i}"));
            for i in 0..CHURN {
                let file = engine.create(&name(i)?)?;
                engine.write(file, &[7; BLOCK])?;
                engine.close(file)?;
                if (turn, i) == (1, CHURN / 2) {
                    println!("ready");
                }
            }
            (0..CHURN).try_for_each(|i| engine.unlink(&name(i)?))?;
            engine.rmdir(&CString::new(dir.as_str())?)?;
        }
        Ok(())
    })
}

/// Copies an image with its holes.
fn copy(from: &Path, to: &Path) -> Result<()> {
    output(command(&["cp", "--sparse=auto"]).arg(from).arg(to)).map(drop)
}

/// The exit code of a check by a program.
fn code_of(command: &mut Command) -> Result<i32> {
    let program = command.get_program().to_string_lossy().into_owned();
    let ended = command.output().map_err(|why| match why.kind() {
        std::io::ErrorKind::NotFound => format!("{program} is not installed"),
        _ => format!("{program}: {why}"),
    })?;
    let killed = || format!("{program}: {}", ended.status);
    Ok(ended.status.code().ok_or_else(killed)?)
}

fn e2fsck(flags: &str, image: &Path) -> Result<i32> {
    code_of(command(&["e2fsck", flags]).arg(image))
}

impl Images<'_> {
    /// A copy of the clean one, as a killed process leaves it.
    fn kill(&mut self, at: PathBuf) -> Result<()> {
        copy(&self.clean, &at)?;
        let task = Task::ChurnExt2 { image: at.clone() };
        let (process, _) = task.start(self.plan)?;
        drop(process);
        self.killed = Some(at);
        Ok(())
    }

    /// What e2fsck says of the images before anything is timed, if it is there.
    fn judge(&mut self) -> Result<Option<String>> {
        match e2fsck("-fn", &self.clean)? {
            0 => {}
            code => return Err(format!("it calls a clean image wrong (exit code {code})").into()),
        }
        let Some(killed) = &self.killed else {
            return Ok(None);
        };
        copy(killed, &self.copy)?;
        Ok(match e2fsck("-fp", &self.copy)? {
            ..=3 => None,
            code => {
                self.answer = "-fy";
                Some(format!(
                    "e2fsck -p ends early on what the kill left (exit code {code}), so that its \
                     figure there is that of -y; tureen fsck repairs it without being asked"
                ))
            }
        })
    }

    /// All in turn, round by round: ms.
    fn chart(&self, checkers: &[Checker], count: u64) -> Result<Chart> {
        let title = format!("Check of an ext2 image with {count} files");
        let mut chart = Chart::new(title, "image", "ms", Better::Less, Shape::Bars);
        let ops: Vec<_> = OPS
            .into_iter()
            .filter(|&(_, killed, _)| !killed || self.killed.is_some())
            .collect();
        let mut found = vec![vec![Series::default(); ops.len()]; checkers.len()];
        let (plan, rounds) = (&self.plan.part(TIME), self.plan.rounds);
        for number in 0..=rounds {
            if number > ROUNDS_MIN && plan.is_over() {
                break;
            }
            for turn in 0..checkers.len() {
                let who = (turn + number) % checkers.len();
                let (done, steps) = (
                    number * checkers.len() + turn,
                    (rounds + 1) * checkers.len(),
                );
                let what = format!("fsck: {}", checkers[who].name());
                plan.progress.step(&what, done, steps);
                for (i, &op) in ops.iter().enumerate() {
                    let ms = self.check(checkers[who], op)?;
                    match number {
                        // It warms up, and is looked at.
                        0 => self.is_repaired(checkers, (checkers[who], op))?,
                        _ => found[who][i].push(ms),
                    }
                }
            }
        }
        let lines = checkers.iter().zip(found).map(|(who, found)| Line {
            target: who.name(),
            points: ops
                .iter()
                .zip(found)
                .map(|(&(name, ..), rounds)| Point::new(name, rounds))
                .collect(),
        });
        chart.lines = lines.collect();
        Ok(chart)
    }

    /// A check: ms.
    fn check(&self, who: Checker, (name, killed, repairs): (&str, bool, bool)) -> Result<f64> {
        let image = match (&self.killed, killed, repairs) {
            (Some(killed), true, false) => killed,
            (Some(killed), true, true) => {
                copy(killed, &self.copy)?;
                &self.copy
            }
            _ => &self.clean,
        };
        let pinned = match who {
            Checker::Here(threads) => Some(Pinned::to(threads)?),
            Checker::Tureen | Checker::E2fsck => None,
        };
        let begin = Instant::now();
        let code = match who {
            Checker::Here(_) => {
                let disk = BlockSetup::default().open(image)?;
                let now = SystemClock.now();
                ffs::check_keeping(&disk, repairs, now, &|_, _, _| ())?
                    .exit_code()
                    .into()
            }
            Checker::Tureen => {
                let flag = if repairs { "-p" } else { "-n" };
                code_of(
                    Command::new(self.plan.program()?)
                        .args(["fsck", flag])
                        .arg(image),
                )?
            }
            Checker::E2fsck => match (killed, repairs) {
                (_, false) => e2fsck("-fn", image)?,
                (false, true) => e2fsck("-fp", image)?,
                (true, true) => e2fsck(self.answer, image)?,
            },
        };
        let ms = begin.elapsed().as_secs_f64() * 1000.0;
        drop(pinned);
        let is_right = match (killed, repairs) {
            (false, _) => code == 0,
            (true, true) => code <= 1,
            // Errors are left.
            (true, false) => code == 0 || code == 4,
        };
        match is_right {
            true => Ok(ms),
            false => Err(format!("{}, {name}: exit code {code}", who.name()).into()),
        }
    }

    /// Of what we repaired e2fsck says that nothing is left.
    fn is_repaired(
        &self,
        checkers: &[Checker],
        (who, (name, killed, repairs)): (Checker, (&str, bool, bool)),
    ) -> Result<()> {
        let has_judge = checkers.iter().any(|one| matches!(one, Checker::E2fsck));
        if !(has_judge && killed && repairs) {
            return Ok(());
        }
        match e2fsck("-fn", &self.copy)? {
            0 => Ok(()),
            code => Err(format!("{}, {name}: e2fsck finds more ({code})", who.name()).into()),
        }
    }
}
