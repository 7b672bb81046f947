//! One line that says in words whether all is well.

use serde_json::Value;

use crate::units::span;

/// What is not well, what will be, or that all is well.
pub fn verdict(report: &Value) -> String {
    match (troubles(report).as_slice(), remarks(report).as_slice()) {
        ([], []) => format!("All is well{}.", durable(report)),
        ([], remarks) => format!("All is well{}; {}.", durable(report), remarks.join("; ")),
        (troubles, _) => format!("NOT WELL: {}.", troubles.join("; ")),
    }
}

/// What somebody has to do something about.
fn troubles(report: &Value) -> Vec<String> {
    let file_system = &report["file_system"];
    let because = |fact: &Value, what: &str| {
        let why = fact.as_str()?.trim_end_matches('.');
        Some(format!("{what}: {why}"))
    };
    let shut_down = "it was shut down, and nothing becomes durable any more";
    let troubles = [
        (report["shut_down"] == true).then(|| shut_down.to_owned()),
        because(
            &file_system["failed"],
            "nothing becomes durable any more, unmount it and look at its medium",
        ),
        because(
            &file_system["host_full"],
            "there is no room for the image to grow",
        ),
        because(&file_system["damaged"], "it is damaged"),
        because(&report["last_error"], "the last error of a request was"),
    ];
    troubles.into_iter().flatten().collect()
}

/// What is good to know, and mends itself.
fn remarks(report: &Value) -> Vec<String> {
    let file_system = &report["file_system"];
    let unclean = "it was not unmounted cleanly, and the next mount recovers it";
    let reclaiming = "space that a crash lost is being searched for";
    let noticed = file_system["notice"].as_str();
    let remarks = [
        (file_system["clean"] == false).then(|| unclean.to_owned()),
        (file_system["reclaiming"] == true).then(|| reclaiming.to_owned()),
        noticed.map(|notice| format!("when it was mounted: {notice}")),
    ];
    remarks.into_iter().flatten().collect()
}

/// How much of what was done is durable, as far as the engine tells.
fn durable(report: &Value) -> String {
    let file_system = &report["file_system"];
    match (&file_system["late_ms"], &file_system["clean"]) {
        (Value::Number(ms), _) => match ms.as_u64().unwrap_or(0) {
            0 => ": all changes are durable".to_owned(),
            late => format!(
                ": all changes but those of the last {} are durable",
                span(late)
            ),
        },
        (_, Value::Bool(true)) => ": it was unmounted cleanly".to_owned(),
        _ => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_mount_is_well_until_something_needs_somebody() {
        let mut report = json!({
            "shut_down": false, "last_error": null,
            "file_system": { "late_ms": 0, "reclaiming": false, "failed": null },
        });
        assert_eq!(verdict(&report), "All is well: all changes are durable.");
        report["file_system"]["late_ms"] = 1500.into();
        let late = "All is well: all changes but those of the last 1.5 s are durable.";
        assert_eq!(verdict(&report), late);
        report["file_system"]["reclaiming"] = true.into();
        assert!(verdict(&report).ends_with("; space that a crash lost is being searched for."));
        report["last_error"] = "write: EIO".into();
        let error = "NOT WELL: the last error of a request was: write: EIO.";
        assert_eq!(verdict(&report), error);
        report["file_system"]["failed"] = "sync of 64 bytes failed".into();
        let failed = verdict(&report);
        assert!(
            failed.contains("look at its medium: sync of 64 bytes failed; "),
            "{failed}"
        );
        report["shut_down"] = true.into();
        assert!(verdict(&report).starts_with("NOT WELL: it was shut down"));
    }

    #[test]
    fn an_image_is_well_if_it_is_whole() {
        let of = |file_system: Value| verdict(&json!({ "file_system": file_system }));
        assert_eq!(
            of(json!({ "clean": true })),
            "All is well: it was unmounted cleanly."
        );
        assert!(of(json!({ "clean": false })).starts_with("All is well; it was not unmounted"));
        let damaged = of(json!({ "clean": true, "damaged": "the checksum; run tureen fsck" }));
        assert_eq!(
            damaged,
            "NOT WELL: it is damaged: the checksum; run tureen fsck."
        );
        assert_eq!(of(json!({ "type": "other" })), "All is well.");
    }
}
