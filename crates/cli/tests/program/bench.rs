//! `tureen bench`: what becomes of its results, and of what it leaves lying about.

use std::ffi::OsStr;
use std::fs;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::process::{Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};

use crate::scene::{Scene, TUREEN, wait_until};

/// A run that takes moments: its figures mean nothing.
const QUICK: [&str; 8] = [
    "--target",
    "tmpfs",
    "--divide",
    "100",
    "--rounds",
    "2",
    "--scratch",
    ".",
];

fn quick<'a>(families: &[&'a str], more: &[&'a str]) -> Vec<&'a str> {
    [&["bench"], families, &QUICK, more].concat()
}

/// Families in a result.
fn names(json: &str) -> Vec<String> {
    let report: serde_json::Value = serde_json::from_str(json).expect("JSON");
    let runs = report["runs"].as_array().expect("runs");
    let name = |run: &serde_json::Value| run["name"].as_str().expect("a name").to_owned();
    runs.iter().map(name).collect()
}

#[test]
fn a_family_that_fails_is_named_and_what_others_found_is_kept() {
    let scene = Scene::new();
    // Names need no room in files, blocks do.
    let limited = "trap '' XFSZ; ulimit -f 600; exec \"$0\" \"$@\"";
    let files = ["--json", "--html", "page.html", "--report", "doc.md"];
    let args = quick(&["names", "data", "sharing"], &files);
    let output = scene.run_as(
        "sh".as_ref(),
        &[&["-c", limited, TUREEN], &args[..]].concat(),
    );
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("tureen: data: tmpfs: "), "{said}");
    // Also what was measured behind it.
    let json = String::from_utf8_lossy(&output.stdout);
    assert_eq!(names(&json), ["names", "sharing"]);
    for (file, part) in [
        ("page.html", "<svg"),
        ("doc.md", "(doc/names.md)"),
        ("doc/names.md", "# names: "),
    ] {
        let text = fs::read_to_string(scene.path(file)).expect("a file");
        assert!(text.contains(part), "{file}: {text}");
    }
}

#[test]
fn a_reader_that_stops_early_ends_the_output_and_nothing_else() {
    let scene = Scene::new();
    for more in [
        &["--html", "page.html"][..],
        &["--json", "--html", "page.html"],
        &[],
    ] {
        let mut child = Command::new(TUREEN)
            .args(quick(&["names"], more))
            .current_dir(scene.path("."))
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the program runs");
        drop(child.stdout.take());
        let mut said = String::new();
        let mut stderr = child.stderr.take().expect("a pipe");
        stderr.read_to_string(&mut said).expect("text");
        assert!(child.wait().expect("its end").success(), "{more:?}: {said}");
        assert!(!said.contains("panicked"), "{more:?}: {said}");
        if !more.is_empty() {
            let page = fs::read_to_string(scene.path("page.html")).expect("a page");
            assert!(page.contains("<svg"), "{more:?}");
            fs::remove_file(scene.path("page.html")).expect("remove");
        }
    }
}

#[test]
fn a_run_that_is_interrupted_leaves_nothing_anywhere() {
    let scene = Scene::new();
    fs::create_dir(scene.path("there")).expect("mkdir");
    let mut child = scene.spawn(&[
        "bench",
        "names",
        "--scratch",
        ".",
        "--rounds",
        "1000000",
        "--target",
        "./there",
        "--target",
        "soupfs:at=there",
    ]);
    let left = |dir: &str| fs::read_dir(scene.path(dir)).expect("a directory").count();
    wait_until("both are there", || left("there") == 2);
    kill_process(Pid::from_child(&child), Signal::INT).expect("signal");
    assert_eq!(child.wait().expect("its end").code(), Some(130));
    // The directory to mount on, and the one that was given.
    assert_eq!((left("there"), left(".")), (0, 2));
}

#[test]
fn a_name_that_is_no_text_is_a_name() {
    let scene = Scene::new();
    let page = OsStr::from_bytes(b"\xff.html");
    let ended = Command::new(TUREEN)
        .args(quick(&["names"], &["--html"]))
        .arg(page)
        .current_dir(scene.path("."))
        .output()
        .expect("the program runs");
    assert!(ended.status.success(), "{ended:?}");
    assert!(scene.path(".").join(page).exists());
}

#[test]
fn a_result_that_was_kept_can_be_looked_at_and_not_measured_otherwise() {
    let scene = Scene::new();
    let kept = scene.must(&quick(&["names"], &["--json"]));
    let kept = kept.replace("Where the time goes", "Where it went");
    fs::write(scene.path("kept.json"), &kept).expect("write");
    let shown = scene.must(&["bench", "--from", "kept.json"]);
    assert!(
        shown.contains("## names: ") && shown.contains("Latency of unlink"),
        "{shown}"
    );
    let again = scene.must(&["bench", "--from", "kept.json", "--json"]);
    assert_eq!(names(&again), names(&kept));
    // To a file only, when there is one.
    let page = ["bench", "--from", "kept.json", "--report", "doc.md"];
    assert_eq!(scene.must(&page), "");
    // Another family's document stays from an earlier run, and is linked.
    fs::rename(scene.path("doc/names.md"), scene.path("doc/other.md")).expect("rename");
    fs::write(scene.path("doc/scale.md"), "# scale: many files\n").expect("write");
    assert_eq!(scene.must(&page), "");
    let linked = fs::read_to_string(scene.path("doc.md")).expect("a file");
    let links = linked
        .lines()
        .filter(|line| line.contains("(doc/scale.md)"));
    let link = "- [scale](doc/scale.md), measured on an earlier day: many files";
    assert_eq!(links.collect::<Vec<_>>(), [link]);
    assert!(!linked.contains("other.md"), "{linked}");
    // With the explanations as they are now.
    let document = fs::read_to_string(scene.path("doc/names.md")).expect("a file");
    assert!(document.contains("Where the time goes"), "{document}");
    for option in [
        "--rounds=3",
        "--against=tmpfs",
        "--target=tmpfs",
        "--peers",
        "--divide=2",
    ] {
        scene.fails(
            &["bench", "--from", "kept.json", option],
            2,
            "cannot be used with",
        );
    }
}

#[test]
fn a_window_without_length_is_refused() {
    let scene = Scene::new();
    scene.fails(&["bench", "postmark", "--window", "0"], 2, "'0'");
}

#[test]
fn results_are_compared_and_their_rounds_joined() {
    let scene = Scene::new();
    let kept = scene.must(&quick(&["names"], &["--json"]));
    fs::write(scene.path("kept.json"), &kept).expect("write");
    // Twice two rounds are too few, three times two suffice; nothing differs from itself.
    for (files, said) in [(2, "0 of 0 figures"), (3, "figures, where chance")] {
        let files = vec!["kept.json"; files];
        let args = [&["bench", "--before"], &files[..], &["--after"], &files[..]].concat();
        let compared = scene.must(&args);
        assert!(compared.contains(said), "{compared}");
    }
    scene.fails(&["bench", "--before", "kept.json"], 2, "--after");
}
