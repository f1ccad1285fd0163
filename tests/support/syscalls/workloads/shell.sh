# shellcheck shell=bash disable=SC2016,SC2034
# What bash and sh do by themselves, and each program of a minimal Debian once. A program that fails is observed, too.
set +e
mkdir work && cd work || exit 1
seq 1000 >numbers
cp numbers file
for shell in bash sh; do
  $shell -c 'echo one | cat | wc -l; x=$(echo two); echo "$x" >out 2>&1; cat <<END
here
END
  for f in *; do test -f "$f" && [ -r "$f" ] && [ -x "$f" ]; done; (exit 3); true & wait $!; trap "echo caught" USR1; kill -USR1 $$; ulimit -n; umask 022; cd /; pwd; read -r a <<X
x
X
  type ls; exec true'
done
set -m
sleep 5 & kill -STOP %1; bg %1; jobs -l; kill %1; wait %1
diff <(echo one) <(echo two)
coproc cat; echo x >&"${COPROC[1]}"; read -r -t 1 -u "${COPROC[0]}" answer
mapfile -t lines <numbers; read -r -t 0.1 -p "ask: " nothing </dev/null; time true; printf '%(%F)T\n' -1; disown -a; times; ulimit -a; hash -r; echo "${#lines[@]} $RANDOM $SECONDS" >&2
exec 9>lock; flock -n 9; exec 9>&-
script -qec 'bash -i -c "stty -a; tput cols; echo interactive; sleep 0.1 | cat"' typescript </dev/null
printf 'sleep 1 &\nfg\njobs\nexit\n' | script -qec 'bash -i' typescript

one_by_one='arch|b2sum file|base32 file|base64 file|basename /a/b|basenc --base16 file|cat file|chgrp '"$(id -g)"' file|chmod 640 file|chown '"$(id -u)"' file
cksum file|comm file file|cp -a file copy|cp --reflink=auto file copy2|cp --sparse=always file copy3|csplit -s file 10|cut -c1 file|date|dd if=file of=dd bs=64 count=2|dd if=file of=dd bs=512 count=1 oflag=direct conv=fsync|df|df .
dir|dircolors|dirname /a/b|du -sh .|echo x|env|expand file|expr 1 + 1|factor 1234567|false|fmt file|fold file|groups|head -3 file|head -c 100 file|hostid|id|install -m 644 file installed|join file file
link file linked|ln -s file soft|ln file hard|logname|ls -laR .|ls --color=always -l /tmp|md5sum file|mkdir -p d/e/f|mkfifo fifo|mktemp|mktemp -d|mv copy moved|mv -n moved moved2|nice true|nl file|nohup true|nproc|numfmt 1000
od file|paste file file|pathchk file|pinky|pr file|printenv|printf x|ptx file|pwd|readlink -f soft|realpath soft|rm -f moved2|rmdir d/e/f|seq 3|sha1sum file|sha224sum file|sha256sum file|sha384sum file|sha512sum file
shred -n1 copy2|shuf file|sleep 0.01|sort file|sort --parallel=2 -S 1M file|split -l 100 file|stat file|stat -f .|stdbuf -o0 true|stty -a|sum file|tac file|tail -3 file|tail -c 10 file|timeout 0.2 tail -f file|tee teed
test -f file|timeout 1 true|timeout 0.05 sleep 5|touch -d yesterday file|touch new|tr a b|truncate -s 10 new|truncate -r file new|tsort file|tty|uname -a|unexpand file|uniq file|unlink linked|uptime|users|vdir|wc file|who|whoami|timeout 0.1 yes
grep -r 1 .|sed -i s/1/2/ file|find . -type f -newer numbers -exec true {} +|xargs -P2 -n100 echo|gzip -k file|gunzip -c file.gz|zcat file.gz|tar czf all.tgz file soft d|tar xzf all.tgz -C d|tar --xattrs -cf all.tar file
diff file numbers|cmp file numbers|diff3 file file numbers|awk {print}|perl -e print(1);fork();sleep(0);|hostname|getopt a -- -a|setsid true|nsenter --help|taskset -p $$|ionice|chrt -p $$|prlimit|renice -n 1 $$|lscpu|lsipc|findmnt|lsblk|mountpoint /|ipcs|dmesg|rev file|column file|look a|cal|getconf -a|locale -a|iconv -f utf8 -t latin1 file|ldd /bin/true|tzselect --version|dpkg -l|apt --version|run-parts --list .|tempfile|which ls|savelog --help|ischroot|more file|namei file|fallocate -l 100 fallocated|hexdump -C file|ps aux|top -bn1|free|pgrep bash|kill -l|pkill nobodyhas|vmstat|w|watch --version|xz -k numbers|bzip2 -k numbers|openssl rand 8|git --version'
printf '%s\n' "$one_by_one" | tr '|' '\n' | while IFS= read -r line; do
  # shellcheck disable=SC2086
  $line <numbers >/dev/null 2>&1
done
exit 0
