//! How nodes create, share, leave and reuse a cookie, and what is refused in its place.

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

fn at(dir: &Path) -> CookieFolders {
    CookieFolders { runtime: Vec::new(), own: vec![dir.to_path_buf()] }
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
                    // A client now finds the cookie that this node requires, whichever other node
                    // ends.
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
    let refused_with = |part: &str| {
        for text in [
            find_in(&at(dir.path()), JOB).unwrap_err().to_string(),
            CookieFile::hold_in(dir.path(), JOB).unwrap_err().to_string(),
        ] {
            assert!(text.contains(part) && text.contains(path.to_str().unwrap()), "{text}");
        }
    };
    symlink(&precious, &path).unwrap();
    refused_with("is a link");
    std::fs::remove_file(&path).unwrap();
    std::fs::create_dir(&path).unwrap();
    refused_with("is not a file");
    std::fs::remove_dir(&path).unwrap();
    std::fs::write(&path, [1; 31]).unwrap();
    set_mode(&path, 0o600);
    refused_with("is damaged");
    std::fs::write(&path, [1; 33]).unwrap();
    refused_with("is damaged");
    std::fs::write(&path, [1; 32]).unwrap();
    set_mode(&path, 0o640);
    refused_with("mode 640");
    set_mode(&path, 0o604);
    refused_with("chmod 600");
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
    assert!(text.contains("is not a folder of this user"), "{text}");
}

#[test]
fn i20_a_folder_of_the_systems_comes_first_and_a_strange_one_is_passed_over() {
    let (runtime, own) = (folder(), folder());
    let missing = own.path().join("missing");
    let strange = folder();
    set_mode(strange.path(), 0o777);
    let runtime_first = vec![missing, strange.path().to_path_buf(), runtime.path().to_path_buf()];
    let folders = CookieFolders { runtime: runtime_first, own: vec![own.path().to_path_buf()] };
    let held = CookieFile::hold_at(&folders, JOB).unwrap();
    assert!(held.path().starts_with(runtime.path()), "{:?}", held.path());
    // A cookie created before there was a runtime folder is still used.
    drop(held);
    let before = CookieFile::hold_in(own.path(), JOB).unwrap();
    let after = CookieFile::hold_at(&folders, JOB).unwrap();
    assert_eq!(before.secret(), after.secret());
    assert_eq!(entries(strange.path()), Vec::<String>::new());
}

#[test]
fn i20_a_strangers_folder_does_not_matter_where_there_is_another() {
    if !rustix::process::geteuid().is_root() {
        // Only root can create a folder that belongs to another user.
        return;
    }
    let dir = folder();
    let folders = ["run", "nkv-0", "nkv-0.1"].map(|name| dir.path().join(name));
    let [run, first, second] = &folders;
    for path in [run, first] {
        std::fs::create_dir(path).unwrap();
        set_mode(path, 0o700);
    }
    std::os::unix::fs::chown(first, Some(65_534), Some(65_534)).unwrap();
    let own = vec![first.clone(), second.clone()];
    let both = CookieFolders { runtime: vec![run.clone()], own: own.clone() };
    let held = CookieFile::hold_at(&both, JOB).unwrap();
    assert!(held.path().starts_with(run) && !second.exists());
    assert_eq!(find_in(&both, JOB).unwrap().as_ref(), Some(held.secret()));
    drop(held);
    // Without a folder of the system, the next one of this user's own.
    let next = CookieFolders { runtime: Vec::new(), own };
    let held = CookieFile::hold_at(&next, JOB).unwrap();
    assert!(held.path().starts_with(second));
    assert_eq!(find_in(&next, JOB).unwrap().as_ref(), Some(held.secret()));
    drop(held);
    std::os::unix::fs::chown(second, Some(65_534), Some(65_534)).unwrap();
    let text = CookieFile::hold_at(&next, JOB).unwrap_err().to_string();
    for part in [first.to_str().unwrap(), second.to_str().unwrap(), "XDG_RUNTIME_DIR"] {
        assert!(text.contains(part), "{text}");
    }
}

#[test]
fn i20_a_cookie_that_was_removed_is_put_back_and_the_last_node_removes_it_all_the_same() {
    let dir = folder();
    let inside = dir.path().join("folder");
    let [first, second] = [0; 2].map(|_| {
        let _ = std::fs::create_dir(&inside);
        set_mode(&inside, 0o700);
        CookieFile::hold_in(&inside, JOB).unwrap()
    });
    assert_eq!(first.put_back().unwrap(), None);
    for gone_with_its_folder in [false, true] {
        std::fs::remove_file(first.path()).unwrap();
        if gone_with_its_folder {
            std::fs::remove_dir(&inside).unwrap();
        }
        assert_eq!(second.put_back().unwrap(), Some(second.path()));
        assert_eq!(find_in(&at(&inside), JOB).unwrap().as_ref(), Some(first.secret()));
        // The others share the new file's lock.
        assert_eq!(first.put_back().unwrap(), Some(first.path()));
        assert_eq!((first.put_back().unwrap(), second.put_back().unwrap()), (None, None));
    }
    drop(second);
    assert_eq!(entries(&inside).len(), 1);
    // If another was created meanwhile, that one is used.
    std::fs::remove_file(first.path()).unwrap();
    let other = CookieFile::hold_in(&inside, JOB).unwrap();
    let text = first.put_back().unwrap_err().to_string();
    assert!(text.contains("created again"), "{text}");
    assert_eq!(find_in(&at(&inside), JOB).unwrap().as_ref(), Some(other.secret()));
    drop(other);
    assert!(first.put_back().unwrap().is_some());
    // If its creator was killed since, nobody holds it.
    std::fs::remove_file(first.path()).unwrap();
    std::fs::write(first.path(), [7; 32]).unwrap();
    set_mode(&first.path(), 0o600);
    assert!(first.put_back().unwrap().is_some());
    assert_eq!(find_in(&at(&inside), JOB).unwrap().as_ref(), Some(first.secret()));
    first.let_go();
    assert_eq!(entries(&inside), Vec::<String>::new());
    assert_eq!(first.put_back().unwrap(), None, "it ended");
    assert_eq!(entries(&inside), Vec::<String>::new());
}

#[test]
fn i20_what_killed_jobs_left_is_swept_by_the_next_node_and_nothing_else() {
    let dir = folder();
    let living = CookieFile::hold_in(dir.path(), "living").unwrap();
    let odd = ["nkv-odd.cookie", "nkv-short.cookie", "precious", "nkv-link.cookie"];
    for (name, len) in [("nkv-killed.cookie", 32), (odd[0], 32), (odd[1], 5), (odd[2], 32)] {
        std::fs::write(dir.path().join(name), vec![1; len]).unwrap();
        set_mode(&dir.path().join(name), 0o600);
    }
    set_mode(&dir.path().join(odd[0]), 0o644);
    symlink(dir.path().join("precious"), dir.path().join(odd[3])).unwrap();
    let held = CookieFile::hold_in(dir.path(), JOB).unwrap();
    let mut left = entries(dir.path());
    left.sort();
    let mut all: Vec<String> = odd.map(str::to_string).into();
    all.extend([file_name("living"), file_name(JOB)]);
    all.sort();
    assert_eq!(left, all);
    drop((living, held));
}
