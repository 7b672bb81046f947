//! SQLite's durable transactions: in-process by the VFS of `tureen-sqlite`, beside its own VFS on
//! mounts and on the kernel's file systems (HTMFS Fig. 10, and inserts).
//!
//! All participants are the program `sqlite3` of the machine, which does the same statements; in an
//! image it has the extension loaded, if that is found beside this program. It is started before
//! the time that counts, and ends behind it.

mod shell;
mod tpcc;

use std::path::{Path, PathBuf};
use std::time::Duration;

use pmem::Domain;

use self::shell::Shell;
use super::commands::{Commands, remove_all};
use super::{claims, disk};
use crate::counters::Counters;
use crate::participants::{Participant, Participants, file_system_of, with_paths};
use crate::plan::{Clock, Plan};
use crate::report::{Better, Chart, Check, Found, Line, Peer, Run, Shape, within};
use crate::runner::run_each;
use crate::sampler::{Sampler, figure};
use crate::target::{EXT4_DATA_JOURNAL, Result, Setup, TargetSpec};

const IN_MEMORY: &str = "SQLite, images in memory";
const ON_DISK: &str = "SQLite, images on a disk";
/// Databases in an image, without a mount.
const VFS: &str = "VFS";
/// The extension, beside this program.
const EXTENSION: &str = "libtureen_sqlite.so";
/// Of each image and device.
const LEN: u64 = 256 << 20;
/// Names, and the modes of SQLite's journal. On a file system a database needs one.
const JOURNALS: [(&str, &str); 3] = [
    (NO_JOURNAL, "off"),
    ("rollback journal", "delete"),
    (WAL, "wal"),
];
const NO_JOURNAL: &str = "no journal";
const WAL: &str = "WAL";
/// What is measured.
const INSERT: &str = "an insert";
const TPCC: &str = "TPC-C, a transaction";
/// Transactions, in memory and on a disk, and no fewer than some.
const TRANSACTIONS: [u64; 2] = [1_000, 250];
const TRANSACTIONS_MIN: u64 = 20;
/// A slow machine has fewer rounds.
const TIMES: [Duration; 2] = [Duration::from_secs(45), Duration::from_secs(45)];
/// What the paper calls a small overhead; it has 2 percent.
const SMALL: (f64, f64) = (1.0 / 1.1, f64::INFINITY);

/// Runs it.
pub fn run(plan: &Plan) -> Result<Found> {
    with_paths(|| {
        let plan = Plan {
            paths: true,
            // Others work.
            clock: Clock::Wall,
            ..plan.clone()
        };
        measure(&plan)
    })
}

fn measure(plan: &Plan) -> Result<Found> {
    let mut run = Run::new(
        "sqlite",
        "durable transactions of SQLite, in an image without a mount and on file systems",
    );
    let (commands, vfs) = (Commands::default(), extension());
    let setup = Setup {
        len: LEN,
        ..plan.setup()
    };
    let words = ["mount", "mount:mode=strong", "mount:mode=sync", "tmpfs"];
    let [mount, strong, sync, tmpfs] = words.map(str::parse::<TargetSpec>);
    let (mount, strong, sync, tmpfs) = (mount?, strong?, sync?, tmpfs?);
    let [ext4, data_journal] = ["ext4", EXT4_DATA_JOURNAL].map(TargetSpec::Kernel);
    let in_memory = [&mount, &strong, &sync, &ext4, &data_journal, &tmpfs].map(Clone::clone);
    let participants = Participants::of(plan, &in_memory, &setup)?;
    run.baseline = baseline(&participants);
    let part = (TRANSACTIONS[0], TIMES[0]);
    let (chart, mut peers) =
        Media::new(plan, participants, &setup, &vfs)?.chart(part, &commands)?;
    run.charts.push(chart.like("HTMFS Fig. 10"));
    let on_disk = [mount, strong, ext4, TargetSpec::Host, tmpfs];
    let setup = disk::setup(plan, LEN);
    let participants = Participants::on_disk(plan, &on_disk, &setup)?;
    let part = (TRANSACTIONS[1], TIMES[1]);
    let (chart, more) = Media::new(plan, participants, &setup, &vfs)?.chart(part, &commands)?;
    run.charts.push(chart);
    peers.extend(more);
    run.checks = vec![fig10(&run)];
    run.notes = notes(plan);
    if let Err(why) = &vfs {
        run.notes.push(format!("no figures of the {VFS}: {why}"));
    }
    run.notes.extend(commands.notes());
    Ok((run, peers))
}

/// Who others are compared with.
fn baseline(participants: &Participants) -> String {
    let mut names = participants.running.iter().map(|one| &one.peer.name);
    let base = match names.any(|name| name == "ext4") {
        true => "ext4",
        false => "tmpfs",
    };
    line(base, WAL)
}

/// The name of a target with a mode of SQLite's journal.
fn line(target: &str, journal: &str) -> String {
    format!("{target}, {journal}")
}

/// The extension that has the VFS.
fn extension() -> Result<PathBuf> {
    let program = std::env::current_exe()?;
    let path = program.with_file_name(EXTENSION);
    match path.is_file() {
        true => Ok(path),
        false => Err(format!(
            "{EXTENSION} is not beside this program; `cargo build --release` makes both"
        )
        .into()),
    }
}

/// Participants in memory, or on a disk.
struct Media<'a> {
    plan: &'a Plan,
    participants: Participants,
    setup: &'a Setup,
    extension: Option<&'a Path>,
}

/// What is done by one process after the other: statements before the time that counts, and a file
/// of those in it.
struct Work {
    name: &'static str,
    before: String,
    /// Its name, and where it is.
    file: &'static str,
    script: PathBuf,
}

impl<'a> Media<'a> {
    /// These, and the VFS.
    fn new(
        plan: &'a Plan,
        mut participants: Participants,
        setup: &'a Setup,
        vfs: &'a Result<PathBuf>,
    ) -> Result<Media<'a>> {
        let extension = match vfs {
            Ok(path) => {
                participants.add(plan, &TargetSpec::Host, setup, VFS)?;
                participants.running.rotate_right(1);
                let own = &mut participants.running[0];
                own.peer = peer(setup, own.place()?);
                Some(path.as_path())
            }
            Err(why) => {
                participants.missing.push(Peer {
                    missing: Some(why.to_string()),
                    ..peer(setup, Path::new("/"))
                });
                None
            }
        };
        Ok(Media {
            plan,
            participants,
            setup,
            extension,
        })
    }

    fn is_disk(&self) -> bool {
        self.setup.domain == Domain::Page
    }

    fn chart(
        &self,
        (count, time): (u64, Duration),
        commands: &Commands,
    ) -> Result<(Chart, Vec<Peer>)> {
        let count = self.plan.scaled(count).max(TRANSACTIONS_MIN);
        let scripts = self.plan.temp()?;
        let work = |name, before, file, statements: String| -> Result<Work> {
            let script = scripts.path().join(file);
            std::fs::write(&script, statements)?;
            Ok(Work {
                name,
                before,
                file,
                script,
            })
        };
        let table = "CREATE TABLE t(id INTEGER PRIMARY KEY, body BLOB);".to_owned();
        let insert = "INSERT INTO t(body) VALUES(randomblob(100));\n".repeat(count as usize);
        let works = [
            work(INSERT, table, "inserts", insert)?,
            work(TPCC, tpcc::load()?, "tpcc", tpcc::transactions(count)?)?,
        ];
        let title = match self.is_disk() {
            true => ON_DISK,
            false => IN_MEMORY,
        };
        let plan = self.plan.part(time);
        let measured = run_each(&plan, &self.participants, title, |one, sampler| {
            if one.peer.name == VFS {
                let image = one.place()?.join("image");
                remove_all(one.place()?, &["image"])?;
                drop(self.setup.create(&image)?);
            }
            for (journal, mode) in JOURNALS {
                if mode == "off" && one.peer.name != VFS {
                    continue;
                }
                for work in &works {
                    let done = self.time((one, sampler), work, (journal, mode), count as usize);
                    commands.note(one, done);
                }
            }
            Ok(())
        })?;
        let mut chart = Chart::new(title, "what", "ns", Better::Less, Shape::Bars);
        for (journal, _) in JOURNALS {
            let own = measured.chart(journal, (title, "what"), Shape::Bars, Better::Less);
            chart.lines.extend(own.lines.into_iter().map(|own| Line {
                target: line(&own.target, journal),
                ..own
            }));
        }
        // Those of one target together.
        let all = self.participants.running.iter();
        let names: Vec<_> = all.map(|one| format!("{}, ", one.peer.name)).collect();
        let place = |own: &Line| names.iter().position(|name| own.target.starts_with(name));
        chart.lines.sort_by_key(place);
        let peers = match self.is_disk() {
            true => disk::peers(&self.participants),
            false => self.participants.peers(),
        };
        Ok((chart, peers))
    }

    /// One process and one database.
    fn time(
        &self,
        (one, sampler): (&Participant, &mut Sampler<'_>),
        work: &Work,
        (journal, mode): (&'static str, &str),
        count: usize,
    ) -> Result<()> {
        let place = one.place()?;
        let files = ["db", "db-wal", "db-shm", "db-journal"];
        let open = match self.extension {
            Some(extension) if one.peer.name == VFS => format!(
                ".load {}\n.open file:image/{mode}-{}?vfs=tureen&domain={}",
                extension.with_extension("").display(),
                work.file,
                self.setup.domain
            ),
            _ => {
                remove_all(place, &files)?;
                ".open db".into()
            }
        };
        let mut shell = Shell::start(place, &open)?;
        let said = shell.ask(&format!("PRAGMA journal_mode={mode};"))?;
        if said != [mode] {
            return Err(format!("journal_mode={mode} was refused: {said:?}").into());
        }
        shell.ask(&format!("PRAGMA synchronous=FULL;\n{}", work.before))?;
        let before = counters(&mut shell)?;
        let read = format!(".read {}", work.script.display());
        sampler.counted(figure(journal, work.name), count, || {
            shell.ask(&read).map(drop)
        })?;
        sampler.counted_also(&counters(&mut shell)?.since(&before));
        let said = shell.ask("PRAGMA integrity_check;")?;
        if said != ["ok"] {
            return Err(format!("{}, {journal}: {said:?}", work.name).into());
        }
        drop(shell);
        remove_all(place, &files)
    }
}

/// What the VFS counts; of SQLite's own nothing.
fn counters(shell: &mut Shell) -> Result<Counters> {
    let mut counts = Counters::default();
    if let Some(said) = shell.ask("PRAGMA tureen_counters;")?.first() {
        let said: serde_json::Value = serde_json::from_str(said)?;
        for (name, field) in [
            ("lines flushed", "flushed_lines"),
            ("fences", "fences"),
            ("syncs", "syncs"),
            ("bytes stored", "stored_bytes"),
        ] {
            let count = said.get(field).and_then(|count| count.as_u64());
            counts.add(name, count.ok_or("a counter of the VFS is missing")?);
        }
    }
    Ok(counts)
}

/// What the report says of the VFS.
fn peer(setup: &Setup, dir: &Path) -> Peer {
    Peer {
        name: VFS.into(),
        about: format!(
            "databases in an image without a mount: the VFS `tureen` in the process of sqlite3, \
             durability=strong, {} MiB on {}, domain {}",
            setup.len >> 20,
            file_system_of(dir),
            setup.domain
        ),
        durability: "each transaction as a whole, when COMMIT returns, with any journal".into(),
        blocks: String::new(),
        missing: None,
    }
}

fn fig10(run: &Run) -> Check {
    let chart = run.chart(IN_MEMORY);
    let ratios: Vec<_> = JOURNALS[1..]
        .iter()
        .filter_map(|(journal, _)| {
            let (own, base) = (line("mount mode=strong", journal), line("mount", journal));
            let ratio = chart?.ratio(&own, &base, &TPCC.into())?;
            Some(((*journal).to_owned(), ratio))
        })
        .collect();
    claims::check(
        "HTMFS Fig. 10: TPC-C on SQLite is 2 percent slower with strong requests.",
        within(ratios.iter().map(|(_, ratio)| Some(ratio.clone())), SMALL),
        format!(
            "On mounts, times as fast as mode delayed: {}.",
            claims::list(&ratios)
        ),
        "Little is taken to mean within 10 percent. Each write of SQLite is durable at return in \
         mode strong, not only those before its fsync. The VFS makes one write of a transaction.",
    )
}

fn notes(plan: &Plan) -> Vec<String> {
    let [memory, disk] = TRANSACTIONS.map(|count| plan.scaled(count).max(TRANSACTIONS_MIN));
    vec![
        format!(
            "all by the program sqlite3, a process for each figure, started before the time that \
             counts and ended behind it; {memory} transactions in memory, {disk} on a disk \
             ({}), synchronous=full",
            file_system_of(&plan.disk)
        ),
        format!("{INSERT}: of 100 bytes, a transaction each"),
        tpcc::about(),
        format!(
            "{VFS}: the extension {EXTENSION}, which the program loads; images of domain line in \
             memory, page on a disk; with no journal and with a rollback journal, which is in \
             memory, a transaction is one write of all its pages; with WAL each frame is one"
        ),
        "mount: images in memory in domain line, too; requests are those of FUSE, counts of lines, \
         fences and syncs those of the server; of the VFS those of sqlite3's process"
            .into(),
    ]
}
