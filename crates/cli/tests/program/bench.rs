//! `tureen bench`: what becomes of its results, and of what it leaves lying about.

use crate::scene::Scene;

#[test]
fn a_window_without_length_is_refused() {
    let scene = Scene::new();
    scene.fails(&["bench", "postmark", "--window", "0"], 2, "'0'");
}
