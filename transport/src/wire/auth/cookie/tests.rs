//! Who makes, shares, leaves and takes over a cookie, and what is refused in its place.

use super::*;
use nkv_store::threads::spawn_named;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::sync::{Arc, Barrier};

const JOB: &str = "job/with blanks";

fn folder() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    set_mode(dir.path(), 0o700);
    dir
}

fn set_mode(path: &Path, mode: u32) {
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
}

fn at(dir: &Path) -> Places {
    Places { runtime: Vec::new(), own: dir.to_path_buf() }
}

fn entries(dir: &Path) -> Vec<String> {
    let all = std::fs::read_dir(dir).unwrap();
    all.map(|e| e.unwrap().file_name().into_string().unwrap()).collect()
}

#[test]
fn i20_a_cookie_is_its_users_alone_and_gone_with_its_last_node() {
    let dir = folder();
    assert_eq!(find_in(&at(dir.path()), JOB).unwrap(), None);
    let first = CookieFile::hold_in(dir.path(), JOB).unwrap();
    let second = CookieFile::hold_in(dir.path(), JOB).unwrap();
    assert_eq!(first.secret(), second.secret());
    let meta = std::fs::symlink_metadata(first.path()).unwrap();
    assert!(meta.is_file() && meta.permissions().mode() & 0o777 == 0o600 && meta.len() == 32);
    let other = CookieFile::hold_in(dir.path(), "another job").unwrap();
    assert_ne!(first.secret(), other.secret());
    drop(first);
    assert_eq!(find_in(&at(dir.path()), JOB).unwrap().as_ref(), Some(second.secret()));
    drop((second, other));
    assert_eq!(entries(dir.path()), Vec::<String>::new());
}

#[test]
fn i20_nodes_that_start_at_once_agree_on_one_cookie() {
    let dir = folder();
    let (path, gate) = (Arc::new(dir.path().to_path_buf()), Arc::new(Barrier::new(8)));
    let threads: Vec<_> = (0..8)
        .map(|_| {
            let (path, gate) = (path.clone(), gate.clone());
            spawn_named("starts", move || {
                for _ in 0..50 {
                    gate.wait();
                    let held = CookieFile::hold_in(&path, JOB).unwrap();
                    // What a client finds now is what this node demands, whoever else ends.
                    let found = find_in(&at(&path), JOB).unwrap();
                    assert_eq!(found.as_ref(), Some(held.secret()));
                }
            })
            .unwrap()
        })
        .collect();
    threads.into_iter().for_each(|t| t.join().unwrap());
    assert_eq!(entries(dir.path()), Vec::<String>::new());
}

#[test]
fn i20_what_a_killed_node_left_is_taken_over() {
    let dir = folder();
    std::fs::write(dir.path().join(file_name(JOB)), [7; 32]).unwrap();
    set_mode(&dir.path().join(file_name(JOB)), 0o600);
    let held = CookieFile::hold_in(dir.path(), JOB).unwrap();
    assert_eq!(held.secret(), &Secret::new(&[7; 32], "test").unwrap());
    drop(held);
    assert_eq!(entries(dir.path()), Vec::<String>::new());
}

#[test]
fn i20_what_others_could_have_put_there_is_refused_and_left_alone() {
    let dir = folder();
    let path = dir.path().join(file_name(JOB));
    let precious = dir.path().join("precious");
    std::fs::write(&precious, [1; 32]).unwrap();
    set_mode(&precious, 0o600);
    let says = |part: &str| {
        for text in [
            find_in(&at(dir.path()), JOB).unwrap_err().to_string(),
            CookieFile::hold_in(dir.path(), JOB).unwrap_err().to_string(),
        ] {
            assert!(text.contains(part) && text.contains(path.to_str().unwrap()), "{text}");
        }
    };
    symlink(&precious, &path).unwrap();
    says("is a link");
    std::fs::remove_file(&path).unwrap();
    std::fs::create_dir(&path).unwrap();
    says("is no file");
    std::fs::remove_dir(&path).unwrap();
    std::fs::write(&path, [1; 31]).unwrap();
    set_mode(&path, 0o600);
    says("is damaged");
    std::fs::write(&path, [1; 33]).unwrap();
    says("is damaged");
    std::fs::write(&path, [1; 32]).unwrap();
    set_mode(&path, 0o640);
    says("mode 640");
    set_mode(&path, 0o604);
    says("chmod 600");
    set_mode(&path, 0o600);
    set_mode(dir.path(), 0o777);
    let open = CookieFile::hold_in(dir.path(), JOB).unwrap_err().to_string();
    assert!(
        open.contains(&format!(
            "mode 777: others may read or change it; chmod 700 {}",
            dir.path().display()
        )),
        "{open}"
    );
    set_mode(dir.path(), 0o700);
    set_mode(&path, 0o600);
    assert!(find_in(&at(dir.path()), JOB).unwrap().is_some());
    assert_eq!(std::fs::read(&precious).unwrap(), [1; 32]);
}

#[test]
fn i20_another_users_file_or_folder_is_refused() {
    let dir = folder();
    let mut stat = rustix::fs::stat(dir.path()).unwrap();
    assert!(check(dir.path(), &stat, OTHERS).is_ok());
    stat.st_uid += 1;
    let text = check(dir.path(), &stat, OTHERS).unwrap_err().to_string();
    assert!(text.contains(&format!("belongs to user {}", stat.st_uid)), "{text}");
    set_mode(dir.path(), 0o750);
    let text = CookieFile::hold_in(dir.path(), JOB).unwrap_err().to_string();
    assert!(text.contains("mode 750"), "{text}");
    let link = dir.path().join("link");
    symlink(dir.path(), &link).unwrap();
    let text = CookieFile::hold_in(&link, JOB).unwrap_err().to_string();
    assert!(text.contains("is no folder of this user"), "{text}");
}

#[test]
fn i20_a_folder_of_the_systems_comes_first_and_a_strange_one_is_passed_over() {
    let (runtime, own) = (folder(), folder());
    let missing = own.path().join("missing");
    let strange = folder();
    set_mode(strange.path(), 0o777);
    let runtime_first = vec![missing, strange.path().to_path_buf(), runtime.path().to_path_buf()];
    let places = Places { runtime: runtime_first, own: own.path().to_path_buf() };
    let held = CookieFile::hold_at(&places, JOB).unwrap();
    assert!(held.path().starts_with(runtime.path()), "{:?}", held.path());
    // One that was made before there was a runtime folder is used all the same.
    drop(held);
    let before = CookieFile::hold_in(own.path(), JOB).unwrap();
    let after = CookieFile::hold_at(&places, JOB).unwrap();
    assert_eq!(before.secret(), after.secret());
    assert_eq!(entries(strange.path()), Vec::<String>::new());
}
