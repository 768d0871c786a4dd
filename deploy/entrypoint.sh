#!/bin/sh
# What a container of the image runs. Spark on Kubernetes starts its pods with the arguments "executor", or "driver" and
# those of spark-submit, and says the rest in variables. Everything else is a command: Dagster's.
set -eu

case "${1:-}" in
    executor)
        # SPARK_JAVA_OPT_0, SPARK_JAVA_OPT_1, ...: an option each, which may contain blanks
        set --
        n=0
        while eval "[ -n \"\${SPARK_JAVA_OPT_$n+set}\" ]"; do
            eval "set -- \"\$@\" \"\$SPARK_JAVA_OPT_$n\""
            n=$((n + 1))
        done
        exec tini -s -- "${JAVA_HOME:+$JAVA_HOME/bin/}java" "$@" \
            "-Xms$SPARK_EXECUTOR_MEMORY" "-Xmx$SPARK_EXECUTOR_MEMORY" \
            -cp "${SPARK_CONF_DIR:-$SPARK_HOME/conf}:${SPARK_CLASSPATH:+$SPARK_CLASSPATH:}$SPARK_HOME/jars/*" \
            org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend \
            --driver-url "$SPARK_DRIVER_URL" \
            --executor-id "$SPARK_EXECUTOR_ID" \
            --cores "$SPARK_EXECUTOR_CORES" \
            --app-id "$SPARK_APPLICATION_ID" \
            --hostname "$SPARK_EXECUTOR_POD_IP" \
            --resourceProfileId "$SPARK_RESOURCE_PROFILE_ID" \
            --podName "$SPARK_EXECUTOR_POD_NAME"
        ;;
    driver)
        shift
        exec tini -s -- "$SPARK_HOME/bin/spark-submit" \
            --conf "spark.driver.bindAddress=$SPARK_DRIVER_BIND_ADDRESS" \
            --deploy-mode client "$@"
        ;;
    *)
        exec tini -s -- "$@"
        ;;
esac
