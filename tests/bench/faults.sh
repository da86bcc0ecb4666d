# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
# shellcheck shell=sh disable=SC2119,SC2120 # called by faults.py, with arguments

# What faults.py does on the test host. One unit, sglang-fault.service on port 30100, is now real SGLang, now a stand-in.
unit=sglang-fault
file=/etc/systemd/system/$unit.service

# real LINE...: SGLang as the demo's, with these lines in server.yaml in place of those of the same keys
real() {
    mkdir -p /etc/sglang/fault
    cp /etc/sglang/demo/environment /etc/sglang/fault/environment
    cp /etc/sglang/demo/server.yaml /etc/sglang/fault/server.yaml
    for line in 'port: 30100' "$@"; do
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
    echo "$1" >/root/script.json
    shift
    {
        printf '[Unit]\nStartLimitBurst=3\nStartLimitIntervalSec=600\n'
        printf '[Service]\nType=exec\nExecStart=/usr/bin/python3 /root/standin.py /root/script.json\n'
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
    echo "$1" >/root/stranger.json
    systemd-run --quiet --unit stranger /usr/bin/python3 /root/standin.py /root/stranger.json
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

# process TITLE: the pid of a process of the unit
process() {
    while read -r pid; do
        tr '\0' ' ' <"/proc/$pid/cmdline" | grep -q "$1" && echo "$pid"
    done <"/sys/fs/cgroup/system.slice/$unit.service/cgroup.procs" | head -n 1
}

# certificate NAME DAYS: signed by an authority of its own
certificate() {
    cd /root || return
    openssl req -x509 -newkey rsa:2048 -nodes -keyout key.pem -out certificate.pem -days "$2" -subj "/CN=$1" \
        -addext "subjectAltName=$1" 2>/dev/null
}

# expired: a certificate that was good until yesterday
expired() {
    cd /root || return
    mkdir -p ca && : >ca/index.txt && echo 01 >ca/serial
    printf '[ca]\ndefault_ca=c\n[c]\ndatabase=ca/index.txt\nserial=ca/serial\nnew_certs_dir=ca\ndefault_md=sha256\npolicy=p\n[p]\ncommonName=supplied\n' >ca/conf
    certificate IP:127.0.0.1 2
    openssl req -new -key key.pem -subj /CN=x -addext subjectAltName=IP:127.0.0.1 -out request.pem 2>/dev/null
    openssl ca -batch -config ca/conf -selfsign -keyfile key.pem -in request.pem -out certificate.pem -notext \
        -startdate 20250101000000Z -enddate 20250201000000Z 2>/dev/null
}

# tls: a stand-in with that certificate
tls() {
    standin '{"port": 30100, "tls": {"certfile": "/root/certificate.pem", "keyfile": "/root/key.pem"}}'
    echo 'ssl-certfile: "/root/certificate.pem"' >>/etc/sglang/fault/server.yaml
}

# clean: as if nothing had been; prints what was left behind
clean() {
    systemctl unmask --quiet $unit 2>/dev/null
    systemctl stop $unit stranger 2>/dev/null
    pkill -f 'standin[.]py'
    systemctl reset-failed $unit stranger 2>/dev/null
    rm -rf $file /etc/systemd/system/$unit.service.d /etc/sglang/fault
    systemctl daemon-reload
    pgrep -af 'sglang::|launch_server|journalctl.*--follow|AnsiballZ' || true
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
