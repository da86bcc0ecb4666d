# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
# shellcheck shell=sh disable=SC2119,SC2120 # called by faults.py, with arguments

# What faults.py does on the test host. One unit, sglang-fault.service on port 30100, is now real SGLang, now a stand-in.
unit=sglang-fault
file=/etc/systemd/system/$unit.service

# real LINE...: SGLang as the demo's, with these lines in server.yaml in place of those of the same keys. What begins with a
# capital letter is for the unit.
real() {
    mkdir -p /etc/sglang/fault
    cp /etc/sglang/demo/environment /etc/sglang/fault/environment
    cp /etc/sglang/demo/server.yaml /etc/sglang/fault/server.yaml
    mkdir -p $file.d
    echo '[Service]' >$file.d/fault.conf
    for line in 'port: 30100' "$@"; do
        case $line in [A-Z]*) echo "$line" >>$file.d/fault.conf && continue ;; esac
        sed -i "/^${line%%:*}:/d" /etc/sglang/fault/server.yaml
        echo "$line" >>/etc/sglang/fault/server.yaml
    done
    chmod 644 /etc/sglang/fault/*
    sed -e '/sha256sum/d' -e 's/demo/fault/g' /etc/systemd/system/sglang-demo.service >$file
    start
}

# partition NUMBERS: real SGLang with its layers split so
partition() {
    cp /etc/sglang/demo/environment /tmp/environment
    echo "SGLANG_PP_LAYER_PARTITION=\"$1\"" >>/etc/sglang/demo/environment
    real
    cp /tmp/environment /etc/sglang/demo/environment
}

# standin SCRIPT [LINE-OF-SERVICE...]: a server that plays a script
standin() {
    mkdir -p /etc/sglang/fault
    printf 'host: "127.0.0.1"\nport: 30100\nserved-model-name: "tiny"\n' >/etc/sglang/fault/server.yaml
    echo "$1" >/srv/faults/script.json
    shift
    {
        printf '[Unit]\nStartLimitBurst=3\nStartLimitIntervalSec=600\n'
        printf '[Service]\nType=exec\nExecStart=/usr/bin/python3 /srv/faults/standin.py /srv/faults/script.json\n'
        printf '%s\n' "$@"
        printf '[Install]\nWantedBy=multi-user.target\n'
    } >$file
    start
}

# start: forget what was, and start the unit without waiting for how it ends
start() {
    systemctl daemon-reload
    systemctl reset-failed $unit 2>/dev/null || true
    systemctl restart --no-block $unit
}

# stranger SCRIPT: another process that plays a script
stranger() {
    echo "$1" >/srv/faults/stranger.json
    systemd-run --quiet --unit stranger /usr/bin/python3 /srv/faults/standin.py /srv/faults/stranger.json
    for _second in 1 2 3 4 5; do
        grep -q ':7594 .* 0A ' /proc/net/tcp && return
        sleep 0.5
    done
}

# model DIRECTORY: a copy of the tiny model that may be spoiled
model() {
    rm -rf "$1"
    cp -r /srv/models/tiny-opt "$1"
    chmod -R a+rX "$1"
}

# process TITLE: the pid of a scheduler, as soon as it has its title, which is some time after it began
process() {
    for _moment in $(seq 600); do
        pgrep -f "^$1" && return
        sleep 0.1
    done
    echo "no process $1" >&2
}

# kernel LINE: have journalctl say that the kernel has said that now; what the kernel of a test host says is not ours to make
kernel() {
    echo "$1" >/srv/faults/kernel
    cat >/usr/local/bin/journalctl <<'END'
#!/usr/bin/python3
import json, os, sys
if "--dmesg" not in sys.argv:
    os.execv("/usr/bin/journalctl", ["journalctl", *sys.argv[1:]])
with open("/srv/faults/kernel") as said:
    at = int(os.fstat(said.fileno()).st_mtime * 1e6)
    print(json.dumps({"MESSAGE": said.read().strip(), "__REALTIME_TIMESTAMP": str(at)}))
END
    chmod +x /usr/local/bin/journalctl
}

# certificate NAME DAYS: signed by an authority of its own
certificate() {
    cd /srv/faults || return
    openssl req -x509 -newkey rsa:2048 -nodes -keyout key.pem -out certificate.pem -days "$2" -subj "/CN=$1" \
        -addext "subjectAltName=$1" 2>/dev/null
}

# expired: a certificate that was good until yesterday
expired() {
    cd /srv/faults || return
    mkdir -p ca && : >ca/index.txt && echo 01 >ca/serial
    printf '[ca]\ndefault_ca=c\n[c]\ndatabase=ca/index.txt\nserial=ca/serial\nnew_certs_dir=ca\ndefault_md=sha256\npolicy=p\n[p]\ncommonName=supplied\n' >ca/conf
    certificate IP:127.0.0.1 2
    openssl req -new -key key.pem -subj /CN=x -addext subjectAltName=IP:127.0.0.1 -out request.pem 2>/dev/null
    openssl ca -batch -config ca/conf -selfsign -keyfile key.pem -in request.pem -out certificate.pem -notext \
        -startdate 20250101000000Z -enddate 20250201000000Z 2>/dev/null
}

# tls: a stand-in with that certificate
tls() {
    standin '{"port": 30100, "tls": {"certfile": "/srv/faults/certificate.pem", "keyfile": "/srv/faults/key.pem"}}'
    echo 'ssl-certfile: "/srv/faults/certificate.pem"' >>/etc/sglang/fault/server.yaml
}

# clean: as if nothing had been; prints what was left behind
clean() {
    systemctl unmask --quiet $unit 2>/dev/null
    systemctl stop $unit stranger 2>/dev/null
    systemctl disable --quiet $unit 2>/dev/null
    pkill -f 'standin[.]py'
    systemctl reset-failed $unit stranger 2>/dev/null
    rm -rf $file $file.d /etc/sglang/fault /usr/local/bin/journalctl /srv/faults/kernel
    systemctl daemon-reload
    pgrep -af 'sglang::|launch_server|journalctl.*--follow|python3 && sleep 0|AnsiballZ' | grep -v 'faults[.]sh'
    ls -A ~/.ansible/tmp 2>/dev/null
}

# poll_cpu SECONDS: percent of a core that a running wait uses, with what it calls
poll_cpu() {
    spent() { awk '{ print $14 + $15 + $16 + $17 }' "/proc/$pid/stat"; } # hundredths of seconds
    pid=$(ps -o ppid= -p "$(pgrep -nf 'journalctl.*--follow')" | tr -d ' ')
    before=$(spent)
    sleep "$1"
    echo "$(($(spent) - before)) $1" | awk '{ print $1 / $2 }'
}

# opened: how many connections have been asked for on this host
opened() {
    awk '/^Tcp: [0-9]/ { print $6 }' /proc/net/snmp
}

# loop: what the shell loop would say now
loop() {
    if [ "$(systemctl is-active $unit)" = failed ]; then
        echo FAILED
    elif python3 -c 'import urllib.request as r
print(r.urlopen("http://127.0.0.1:30100/v1/models", timeout=5).read(100000))' 2>/dev/null | grep -q '"id"'; then
        echo READY
    fi
}
