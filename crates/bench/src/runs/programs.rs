//! Programs as they are, on the mount and beside it: on a disk and in memory.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use block::Random;

use super::commands::{Commands, command, output, remove_all};
use super::disk;
use crate::participants::{Participant, Participants, with_paths};
use crate::plan::Plan;
use crate::report::{Better, Chart, Found, PROGRAMS, PROGRAMS_IN_MEMORY, Run, Shape};
use crate::runner::run_each;
use crate::sampler::{Sampler, figure};
use crate::target::{Result, Setup, TargetSpec};
use crate::workloads::gamma;

const CHART: &str = "programs";
/// So many that all rounds of both parts take less than four minutes, fuse2fs a third of them.
const FILES: u64 = 3_500;
const FILES_PER_DIR: u64 = 100;
/// The mean of their sizes.
const MEAN: f64 = 4096.0;
/// In the tree, a package that cargo builds.
const PACKAGE: &str = "package";
const MODULES: u64 = 40;
const LEN: u64 = 1 << 30;
/// A slow machine has fewer rounds: on a disk, and in memory.
const TIMES: [Duration; 2] = [Duration::from_secs(150), Duration::from_secs(120)];

/// Runs it.
pub fn run(plan: &Plan) -> Result<Found> {
    with_paths(|| {
        let plan = Plan {
            paths: true,
            ..plan.clone()
        };
        measure(&plan)
    })
}

fn measure(plan: &Plan) -> Result<Found> {
    let files = plan.scaled(FILES);
    let (source, commands) = (Source::new(plan, files)?, Commands::default());
    let about = format!("programs as they are, on {files} files");
    let mut run = Run::new("programs", about);
    run.notes.extend(source.missing.clone());
    let others = ["ext3", "ext2"].map(TargetSpec::Kernel);
    let on_disk = [disk::specs(), others.into(), vec![TargetSpec::Tmpfs]].concat();
    let participants = Participants::on_disk(plan, &on_disk, &disk::setup(plan, LEN))?;
    run.baseline = disk::baseline(plan, &participants);
    let part = plan.part(TIMES[0]);
    run.charts
        .push(source.chart(&part, &participants, &commands, PROGRAMS)?);
    let mut peers = disk::peers(&participants);
    drop(participants);
    let specs = on_disk.into_iter();
    let specs: Vec<TargetSpec> = specs.filter(|spec| *spec != TargetSpec::Host).collect();
    let setup = Setup {
        len: LEN,
        ..plan.setup()
    };
    let participants = Participants::of(plan, &specs, &setup)?;
    let part = plan.part(TIMES[1]);
    run.charts
        .push(source.chart(&part, &participants, &commands, PROGRAMS_IN_MEMORY)?);
    let others = participants.peers().into_iter();
    peers.extend(others.filter(|peer| peer.name != "tmpfs"));
    run.notes.extend([
        format!(
            "text files of {} bytes on average, {FILES_PER_DIR} in a directory; their source is \
             in memory",
            MEAN
        ),
        "each program finds what those before it left in the caches; nobody waits until what it \
         did is durable"
            .into(),
    ]);
    run.notes.extend(commands.notes());
    Ok((run, peers))
}

/// What programs copy, unpack and clone: a tree, an archive, a repository.
struct Source {
    _temp: tempfile::TempDir,
    tree: PathBuf,
    archive: PathBuf,
    repository: PathBuf,
    /// Why a part of it is not there.
    missing: Option<String>,
}

impl Source {
    fn new(plan: &Plan, files: u64) -> Result<Source> {
        let temp = plan.temp()?;
        let at = |name: &str| temp.path().join(name);
        let (tree, archive, repository) = (at("tree"), at("tree.tar"), at("repository"));
        make_tree(&tree, files)?;
        make_package(&tree.join(PACKAGE))?;
        output(
            command(&["tar", "cf"])
                .arg(&archive)
                .arg("tree")
                .current_dir(temp.path()),
        )?;
        let missing = make_repository(&tree, &repository).err();
        Ok(Source {
            tree,
            archive,
            repository,
            missing: missing.map(|why| format!("no figures of git: {why}")),
            _temp: temp,
        })
    }

    /// The programs, in the order in which they are run.
    fn steps(&self) -> Vec<(&'static str, Command)> {
        let with = |words: &[&str], path: &Path, last: &str| {
            let mut command = command(words);
            command.arg(path).arg(last);
            command
        };
        let mut steps = vec![
            ("cp -a", with(&["cp", "-a"], &self.tree, "copy")),
            (
                "find -printf %s",
                command(&["find", "copy", "-printf", "%s\n"]),
            ),
            ("grep -r", command(&["grep", "-rc", "needle", "copy"])),
            ("tar x", with(&["tar", "xf"], &self.archive, "tree")),
        ];
        let manifest = Path::new("copy").join(PACKAGE).join("Cargo.toml");
        let mut build = command(&["cargo", "build", "--quiet", "--offline", "--manifest-path"]);
        build.arg(manifest).env_remove("CARGO_TARGET_DIR");
        steps.push(("cargo build", build));
        if self.missing.is_none() {
            let mut clone = git(&["clone", "--quiet", "--no-local"]);
            clone.arg(&self.repository).arg("clone");
            steps.extend([
                ("git clone", clone),
                ("git status", git(&["-C", "clone", "status", "--porcelain"])),
                ("git gc", git(&["-C", "clone", "gc", "--quiet"])),
            ]);
        }
        steps.push(("rm -rf", command(&["rm", "-rf", "copy", "tree", "clone"])));
        steps
    }

    fn chart(
        &self,
        plan: &Plan,
        participants: &Participants,
        commands: &Commands,
        title: &str,
    ) -> Result<Chart> {
        let round = |one: &Participant, sampler: &mut Sampler<'_>| -> Result<()> {
            for (name, step) in self.steps() {
                commands.time((one, &mut *sampler), figure(CHART, name), 1, step)?;
            }
            // If one of them failed before.
            remove_all(one.place()?, &["copy", "tree", "clone"])
        };
        let measured = run_each(plan, participants, title, round)?;
        Ok(measured.chart(CHART, (title, "program"), Shape::Bars, Better::Less))
    }
}

/// Text files, of which one in seven has a word that is looked for.
fn make_tree(tree: &Path, files: u64) -> Result<()> {
    let mut random = Random::new(5);
    for i in 0..files {
        let dir = tree.join((i / FILES_PER_DIR).to_string());
        std::fs::create_dir_all(&dir)?;
        let len = gamma(&mut random, MEAN) as usize;
        let mut text = String::with_capacity(len + 32);
        while text.len() < len {
            text += &format!("{:x} of some text\n", random.number());
        }
        if i % 7 == 0 {
            text += "needle\n";
        }
        std::fs::write(dir.join(format!("file{i}.txt")), text)?;
    }
    Ok(())
}

/// A package of Rust, of so many modules.
fn make_package(package: &Path) -> Result<()> {
    let sources = package.join("src");
    std::fs::create_dir_all(&sources)?;
    // A workspace of its own, wherever it lies.
    let manifest = "[package]\nname = \"package\"\nedition = \"2021\"\n\n[workspace]\n";
    std::fs::write(package.join("Cargo.toml"), manifest)?;
    let (mut modules, mut sum) = (String::new(), String::from("0"));
    for i in 0..MODULES {
        let text = format!("pub fn value(of: u64) -> u64 {{\n    of.wrapping_mul({i}) + {i}\n}}\n");
        std::fs::write(sources.join(format!("m{i}.rs")), text)?;
        modules += &format!("mod m{i};\n");
        sum += &format!(" + m{i}::value({i})");
    }
    let main = format!("{modules}\nfn main() {{\n    println!(\"{{}}\", {sum});\n}}\n");
    std::fs::write(sources.join("main.rs"), main)?;
    Ok(())
}

/// A repository of the tree, which lies beside it.
fn make_repository(tree: &Path, repository: &Path) -> Result<()> {
    let here = |words: &[&str]| {
        let mut git = git(words);
        git.arg("--work-tree").arg(tree);
        git
    };
    output(git(&["init", "--quiet", "--bare"]).arg(repository))?;
    for words in [&["add", "."][..], &["commit", "--quiet", "-m", "all of it"]] {
        let mut git = here(&[]);
        git.arg("--git-dir").arg(repository).args(words);
        output(git.current_dir(tree))?;
    }
    Ok(())
}

/// Git, with nobody's configuration.
fn git(words: &[&str]) -> Command {
    let mut git = command(&["git"]);
    git.env("GIT_CONFIG_NOSYSTEM", "1")
        .env("GIT_CONFIG_GLOBAL", "/dev/null")
        .args(["-c", "user.name=bench", "-c", "user.email=bench@localhost"])
        .args(["-c", "safe.directory=*", "-c", "core.bare=false"])
        .args(words);
    git
}
