//! `tureen bench`: what becomes of its results, and of what it leaves lying about.

use std::fs;

use rustix::process::{Pid, Signal, kill_process};

use crate::scene::{Scene, wait_until};

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
fn a_window_without_length_is_refused() {
    let scene = Scene::new();
    scene.fails(&["bench", "postmark", "--window", "0"], 2, "'0'");
}
