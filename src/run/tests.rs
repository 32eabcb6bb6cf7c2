use super::*;
use serde_json::json;
use std::convert::Infallible;

fn new_run(dir: &Path) -> RunDir {
    RunDir::create(Some(&dir.join("run")), "x", 1, "a = 1\n").unwrap()
}

fn save(run: &RunDir, step: u64, keep: usize) -> PathBuf {
    save_with_best(run, step, keep, None)
}

fn save_with_best(run: &RunDir, step: u64, newest: usize, best: Option<u64>) -> PathBuf {
    let m = [step as f32, 2.0];
    let state = StateToSave { value: json!({"step": step}), buffers: vec![("m", (&m[..]).into())] };
    run.save(step, Retention { newest, best }, &state, |dir| {
        fs::write(dir.join("model.safetensors"), vec![step as u8; 100])
    })
    .unwrap()
}

fn record(run: &RunDir, step: u64) {
    let record = Map::from_iter([("reward/mean".to_string(), json!(0.5))]);
    for log in Log::ALL {
        run.append(log, step, &record).unwrap();
    }
}

#[test]
fn a_checkpoint_comes_back_whole_and_only_the_newest_stay() {
    let dir = tempfile::tempdir().unwrap();
    let run = new_run(dir.path());
    for step in [5, 10, 15] {
        save(&run, step, 2);
    }
    assert_eq!(run.steps().unwrap().iter().map(|(s, _)| *s).collect::<Vec<_>>(), [10, 15]);
    let saved = run.newest_checkpoint().unwrap();
    assert_eq!((saved.step, saved.state.value), (15, json!({"step": 15})));
    assert_eq!(saved.state.buffers, [("m".to_string(), vec![15.0, 2.0])]);
    assert!(saved.skipped.is_empty());
}

#[test]
fn a_damaged_checkpoint_is_skipped_and_named() {
    let dir = tempfile::tempdir().unwrap();
    let run = new_run(dir.path());
    save(&run, 5, 0);
    let model = save(&run, 10, 0).join("model.safetensors");
    let state = save(&run, 15, 0).join("trainer.state");

    fs::write(&state, &fs::read(&state).unwrap()[..40]).unwrap();
    assert_eq!(run.newest_checkpoint().unwrap().step, 10);

    fs::write(&model, [10; 60]).unwrap();
    let saved = run.newest_checkpoint().unwrap();
    assert_eq!(saved.step, 5);
    assert!(
        saved.skipped[0].contains("step-000015") && saved.skipped[0].contains("trainer.state"),
        "{:?}",
        saved.skipped
    );
    assert!(saved.skipped[1].contains("model.safetensors has 60 of 100 bytes"), "{:?}", saved.skipped);

    fs::write(&model, [9; 100]).unwrap();
    assert!(run.newest_checkpoint().unwrap().skipped[1].contains("hash differs"));
    fs::remove_dir_all(run.checkpoints().join("step-000005")).unwrap();
    let error = run.newest_checkpoint().unwrap_err().to_string();
    assert!(error.contains("no whole checkpoint") && error.contains("step-000010"), "{error}");
}

#[test]
fn every_single_byte_of_the_state_matters() {
    let dir = tempfile::tempdir().unwrap();
    let path = save(&new_run(dir.path()), 5, 0);
    let state = path.join("trainer.state");
    let bytes = fs::read(&state).unwrap();
    for cut in [0, 1, 8, bytes.len() / 2, bytes.len() - 1] {
        fs::write(&state, &bytes[..cut]).unwrap();
        assert!(matches!(load(&path), Err(RunError::Broken { .. })), "cut at {cut}");
    }
    let mut flipped = bytes.clone();
    *flipped.last_mut().unwrap() ^= 1;
    fs::write(&state, &flipped).unwrap();
    assert!(load(&path).unwrap_err().to_string().contains("hash differs"));
}

#[test]
fn a_failed_save_leaves_the_older_checkpoint_and_opening_clears_the_rest() {
    let dir = tempfile::tempdir().unwrap();
    let run = new_run(dir.path());
    save(&run, 5, 1);
    let error = run.save(10, Retention { newest: 1, best: None }, &StateToSave::default(), |dir| {
        fs::write(dir.join("half"), "x").unwrap();
        Err("the disk is full")
    });
    assert!(error.unwrap_err().to_string().contains("the disk is full"));
    let run = RunDir::open(run.path()).unwrap();
    assert_eq!(entries(&run.checkpoints()).unwrap().len(), 1);
    assert_eq!(run.newest_checkpoint().unwrap().step, 5);
}

#[test]
fn rewinding_forgets_later_steps_and_cut_lines() {
    let dir = tempfile::tempdir().unwrap();
    let run = new_run(dir.path());
    for step in 0..=7 {
        record(&run, step);
        run.write_trajectories(step, [json!({"step": step})]).unwrap();
    }
    save(&run, 5, 0);
    save(&run, 7, 0);
    let metrics = run.path().join("metrics.jsonl");
    let mut text = fs::read_to_string(&metrics).unwrap();
    text.push_str("{\"step\":8,\"rew");
    fs::write(&metrics, text).unwrap();
    run.rewind(5).unwrap();
    let text = fs::read_to_string(&metrics).unwrap();
    assert_eq!(text.lines().count(), 6);
    assert!(text.ends_with("{\"step\":5,\"reward/mean\":0.5}\n"), "{text}");
    assert_eq!(entries(&run.path().join("trajectories")).unwrap().len(), 6);
    assert_eq!(run.steps().unwrap().len(), 1);
}

#[test]
fn nothing_is_overwritten() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("run");
    new_run(dir.path());
    assert!(matches!(RunDir::create(Some(&path), "x", 1, ""), Err(RunError::Exists(_))));
    assert!(matches!(RunDir::create(Some(&path.join("config.toml")), "x", 1, ""), Err(RunError::Exists(_))));
    assert!(matches!(RunDir::open(dir.path()), Err(RunError::NotARun(_))));
    assert_eq!(RunDir::open(&path).unwrap().config().unwrap(), "a = 1\n");
}

#[test]
fn saving_a_step_again_replaces_it() {
    let dir = tempfile::tempdir().unwrap();
    let run = new_run(dir.path());
    save(&run, 5, 0);
    run.save(5, Retention::default(), &StateToSave::default(), |_| Ok::<(), Infallible>(())).unwrap();
    assert_eq!(run.newest_checkpoint().unwrap().state, TrainerState::default());
    assert_eq!(entries(&run.checkpoints()).unwrap().len(), 1);
}

#[test]
fn the_best_checkpoint_stays_and_is_found() {
    let dir = tempfile::tempdir().unwrap();
    let run = new_run(dir.path());
    let steps = || run.steps().unwrap().iter().map(|(step, _)| *step).collect::<Vec<_>>();
    save(&run, 5, 1);
    let error = run.checkpoint(Which::Best).unwrap_err().to_string();
    assert!(error.contains("has no checkpoint best: none was saved after a validation"), "{error}");
    save_with_best(&run, 10, 1, Some(10));
    assert_eq!(steps(), [10]);
    for step in [15, 20] {
        save_with_best(&run, step, 1, Some(10));
        assert_eq!(steps(), [10, step], "the best does not count among the newest");
    }
    let step = |which: &str| run.checkpoint(which.parse().unwrap()).unwrap().step;
    assert_eq!((step("best"), step("newest"), step("20"), step("10")), (10, 20, 20, 10));
    save_with_best(&run, 25, 2, Some(25));
    assert_eq!((steps(), step("best")), (vec![20, 25], 25));
    let error = run.checkpoint(Which::Step(10)).unwrap_err().to_string();
    assert!(error.contains("has no checkpoint 10: checkpoints/step-000010 is not there"), "{error}");
    run.mark_best(None).unwrap();
    assert_eq!(run.best_step().unwrap(), None);
    assert!("bset".parse::<Which>().unwrap_err().contains("newest, best or the number"));
}
